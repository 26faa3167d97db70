"""Sign in and out, one's own account, and the people page of admins; the error pages."""

import json
from typing import Any

from django.contrib import messages
from django.contrib.auth import login, logout, update_session_auth_hash
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView
from django.db import transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_POST

from gyre_web.accounts import services
from gyre_web.accounts.access import require_role, signed_in
from gyre_web.accounts.forms import PasswordForm, PersonForm, SignInForm, TokenForm
from gyre_web.accounts.models import ApiToken, User
from gyre_web.audit.services import record

BACKEND = "django.contrib.auth.backends.ModelBackend"


@method_decorator(login_not_required, name="dispatch")
class SignIn(LoginView):
    template_name = "accounts/sign_in.html"
    authentication_form = SignInForm
    redirect_authenticated_user = True


@login_not_required
@never_cache
def link(request: HttpRequest, secret: str) -> HttpResponse:
    """A one-time link: shown first, used by a button, so that a previewing mail program does not use it up."""
    found = services.find_link(secret)
    if request.method != "POST" or found is None:
        page = render(request, "accounts/link.html", {"link": found}, status=200 if found else 410)
        page["Referrer-Policy"] = "same-origin"  # "no-referrer" would send `Origin: null`, which CSRF refuses
        return page
    user = services.use_link(secret)
    if user is None:
        return render(request, "accounts/link.html", {"link": None}, status=410)
    login(request, user, backend=BACKEND)
    record(user, "person.sign_in_by_link", user)
    if not user.has_usable_password():
        messages.info(request, "You are in. Set a password now, or ask for a new link next time.")
    return redirect("accounts:account" if not user.has_usable_password() else "runs:list")


@require_POST
def sign_out(request: HttpRequest) -> HttpResponse:
    logout(request)
    return redirect("accounts:sign_in")


@never_cache
def account(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    return render(
        request,
        "accounts/account.html",
        {
            "password_form": PasswordForm(user),
            "token_form": TokenForm(),
            "tokens": user.api_tokens.order_by("revoked_at", "-created_at"),
            "fresh_token": request.session.pop("fresh_token", None),
            "scopes": SCOPE_WORDS,
        },
    )


SCOPE_WORDS = [
    ("read", "Read everything you may read."),
    ("review", "Also save labels, if your role allows it."),
    ("operate", "Also start and steer runs, if your role allows it."),
]


@require_POST
def password(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = PasswordForm(user, request.POST)
    if not form.is_valid():
        context = {"password_form": form, "token_form": TokenForm(), "tokens": user.api_tokens.all()}
        return render(request, "accounts/account.html", context, status=422)
    form.save()
    update_session_auth_hash(request, user)
    record(user, "person.password", user)
    messages.success(request, "Your password is set. Other sessions are signed out.")
    return redirect("accounts:account")


@require_POST
def theme(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    wanted = json_body(request).get("theme")
    if wanted not in User.Theme.values:
        return JsonResponse({"error": "theme must be system, light or dark."}, status=422)
    User.objects.filter(pk=user.pk).update(theme=wanted)
    return JsonResponse({"theme": wanted})


def json_body(request: HttpRequest) -> dict[str, Any]:
    """The request's JSON object; an empty one when it is not JSON or no object."""
    try:
        body = json.loads(request.body or b"{}")
    except ValueError:
        return {}
    return body if isinstance(body, dict) else {}


@require_POST
@transaction.atomic
def create_token(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = TokenForm(request.POST)
    if not form.is_valid():
        context = {"password_form": PasswordForm(user), "token_form": form, "tokens": user.api_tokens.all()}
        return render(request, "accounts/account.html", context, status=422)
    token, secret = services.create_token(user=user, **form.cleaned_data)
    record(request, "token.create", token, after={"name": token.name, "scope": token.scope, "prefix": token.prefix})
    request.session["fresh_token"] = secret
    return redirect("accounts:account")


@require_POST
@transaction.atomic
def revoke_token(request: HttpRequest, pk: int) -> HttpResponse:
    user = signed_in(request)
    token = get_object_or_404(ApiToken, pk=pk, user=user)
    services.revoke_token(token=token)
    record(request, "token.revoke", token, before={"name": token.name, "prefix": token.prefix})
    messages.success(request, f"The token {token.name} no longer works.")
    return redirect("accounts:account")


@require_role(User.Role.ADMIN)
def people(request: HttpRequest) -> HttpResponse:
    form = PersonForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        with transaction.atomic():
            user, path = services.create_person(**form.cleaned_data)
            record(request, "person.create", user, after={"username": user.username, "role": user.role})
        return show_link(request, user, path)
    context = {
        "people": User.objects.order_by("username"),
        "form": form,
        "roles": User.Role.choices,
        "fresh_link": request.session.pop("fresh_link", None),
    }
    return render(request, "accounts/people.html", context, status=422 if form.errors else 200)


def show_link(request: HttpRequest, user: User, path: str) -> HttpResponse:
    """Back to the people page, which shows the link this once."""
    request.session["fresh_link"] = {"username": user.username, "url": request.build_absolute_uri(path)}
    return redirect("accounts:people")


@require_role(User.Role.ADMIN)
@require_POST
@transaction.atomic
def new_link(request: HttpRequest, pk: str) -> HttpResponse:
    user = get_object_or_404(User, pk=pk, is_active=True)
    path = services.create_link(user=user)
    record(request, "person.link", user)
    return show_link(request, user, path)


@require_role(User.Role.ADMIN)
@require_POST
@transaction.atomic
def change_person(request: HttpRequest, pk: str) -> HttpResponse:
    user = get_object_or_404(User.objects.select_for_update(), pk=pk)
    before = {"role": user.role, "is_active": user.is_active}
    role, active = request.POST.get("role", user.role), request.POST.get("active", "1") == "1"
    if role not in User.Role.values:
        messages.error(request, f"There is no role {role}.")
    elif user == request.user:
        messages.error(request, "You cannot change your own role or switch yourself off; another admin can.")
    else:
        user.role, user.is_active = role, active
        user.save(update_fields=["role", "is_active"])
        record(request, "person.change", user, before, {"role": user.role, "is_active": user.is_active})
        messages.success(
            request, f"{user.username} is now {user.get_role_display()}{'' if active else ', switched off'}."
        )
    return redirect("accounts:people")


def forbidden(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return render(request, "components/error_page.html", {"code": 403, "reason": str(exception or "")}, status=403)


def not_found(request: HttpRequest, exception: Exception | None = None) -> HttpResponse:
    return render(request, "components/error_page.html", {"code": 404}, status=404)


def failed(request: HttpRequest) -> HttpResponse:
    return render(request, "components/error_page.html", {"code": 500}, status=500)
