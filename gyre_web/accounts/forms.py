"""Forms of sign-in, people and tokens. Widgets carry the classes of components.css."""

from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm, SetPasswordForm

from gyre_web.accounts.models import ApiToken, User


def style(form: forms.BaseForm) -> None:
    """Give every widget its component class, and mark the ones in error for eyes and screen readers."""
    for name, field in form.fields.items():
        kind = "select" if isinstance(field.widget, forms.Select) else "input"
        field.widget.attrs.setdefault("class", kind)
        if form.is_bound and name in form.errors:
            field.widget.attrs["aria-invalid"] = "true"


class SignInForm(AuthenticationForm):
    error_messages = {
        "invalid_login": "This name and password do not match. Both are case sensitive.",
        "inactive": "This account is switched off. Ask an admin.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        style(self)


class PasswordForm(SetPasswordForm):
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        style(self)


class PersonForm(forms.Form):
    username = forms.CharField(max_length=150, validators=[User.username_validator])
    full_name = forms.CharField(max_length=150, required=False)
    role = forms.ChoiceField(choices=User.Role.choices, initial=User.Role.VIEWER)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        style(self)

    def clean_username(self) -> str:
        username: str = self.cleaned_data["username"]
        if User.objects.filter(username__iexact=username).exists():
            raise forms.ValidationError("Somebody has this name already.")
        return username


class TokenForm(forms.Form):
    name = forms.CharField(max_length=80, help_text="Where it is used, so that you know it later.")
    scope = forms.ChoiceField(choices=ApiToken.Scope.choices)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        style(self)
