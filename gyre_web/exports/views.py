"""Data sets and exports: what there is, make one, follow it, take it home."""

from pathlib import Path
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from gyre_web.accounts.access import has_role, require_role, signed_in
from gyre_web.accounts.forms import style
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.exports import items
from gyre_web.runs.models import SavedFilter
from gyre_web.runs.rollout_filter import RolloutFilterForm
from training.datasets import DatasetError, describe_left_out
from training.exports.services import ExportRefused
from training.models import Dataset, Export, Run

SHOWN = 100
FILTERS = ("kept", "verdict", "reward_min", "purpose", "outcome", "harness", "family", "task", "reviewed", "version")
"""Of the rollout filter, those that the form offers; a saved filter may have any."""


class MakeForm(forms.Form):
    """what: `dataset:<kind>` or `export:<format>`."""

    what = forms.ChoiceField(
        choices=[
            (
                "Train on it here",
                [(f"dataset:{value}", f"data set of {word.lower()}") for value, word in Dataset.Kind.choices],
            ),
            ("Download", [(f"export:{value}", word) for value, word in Export.Format.choices]),
        ],
        label="Make",
    )
    name = forms.CharField(max_length=120)
    run = forms.ModelChoiceField(Run.objects.all(), required=False, empty_label="every run")
    saved_filter = forms.ModelChoiceField(SavedFilter.objects.all(), required=False, empty_label="the fields below")

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        style(self)


@require_role(User.Role.VIEWER)
@require_GET
def index(request: HttpRequest) -> HttpResponse:
    return render_index(request)


def render_index(request: HttpRequest, form: MakeForm | None = None, status: int = 200) -> HttpResponse:
    given = request.POST or request.GET
    context = {
        "exports": Export.objects.defer("items")[:SHOWN],
        "datasets": Dataset.objects.defer("items")[:SHOWN],
        "form": form or MakeForm(initial={name: given.get(name) for name in ("what", "name", "run", "saved_filter")}),
        "filter_form": RolloutFilterForm({name: given.get(name, "") for name in FILTERS}),
        "filter_names": FILTERS,
        "may_make": has_role(request.user, User.Role.REVIEWER),
        "may_start": has_role(request.user, User.Role.OPERATOR),
    }
    if request.headers.get("HX-Request") == "true":
        return render(request, "exports/_exports.html", context)
    return render(request, "exports/index.html", context, status=status)


@require_role(User.Role.REVIEWER)
@require_POST
def make(request: HttpRequest) -> HttpResponse:
    user, form = signed_in(request), MakeForm(request.POST)
    if not form.is_valid():
        return render_index(request, form, status=422)
    data = form.cleaned_data
    saved: SavedFilter | None = data["saved_filter"]
    query = saved.query if saved else {name: request.POST.get(name, "") for name in FILTERS}
    choice = items.build_choice(query, data["run"] or (saved.run if saved else None))
    what, _, kind = data["what"].partition(":")
    try:
        if what == "dataset":
            made = items.make_dataset(name=data["name"], kind=kind, choice=choice, author=user)
            left = f" Left out: {describe_left_out(made.left_out)}." if made.left_out else ""
            messages.success(request, f"{made.dataset.name} holds {made.dataset.num_items} items.{left}")
        else:
            items.make_export(name=data["name"], form=kind, choice=choice, author=user)
            messages.success(request, f"{data['name']} is being written.")
    except (DatasetError, ExportRefused) as error:
        form.add_error(error.field if error.field in form.fields else None, str(error))
        return render_index(request, form, status=422)
    except items.WrongFilter as error:
        form.add_error(None, str(error))
        return render_index(request, form, status=422)
    return redirect("exports:index")


@require_role(User.Role.VIEWER)
@require_GET
def download(request: HttpRequest, pk: UUID) -> HttpResponseBase:
    export = get_object_or_404(Export.objects.defer("items"), pk=pk)
    return export_file(export)


def export_file(export: Export) -> FileResponse:
    """Also of REST."""
    path = Path(export.path) if export.path else None
    if export.state != Export.State.DONE or path is None or not path.is_file():
        raise Http404("This export has no file (any more). Make it again.")
    safe = "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in export.name
    )
    return FileResponse(path.open("rb"), as_attachment=True, filename=f"{safe}.{export.format}.zip")


@require_POST
def delete(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Its maker, or an operator."""
    export = get_object_or_404(Export.objects.defer("items"), pk=pk)
    user = signed_in(request)
    if export.made_by != user.username and not user.has_role(User.Role.OPERATOR):
        messages.error(request, "Only its maker or an operator may delete it.")
        return redirect("exports:index")
    record(request, "export.delete", export, before={"name": export.name, "format": export.format})
    if export.path:
        Path(export.path).unlink(missing_ok=True)
    export.delete()
    return redirect("exports:index")
