"""Models: the list, what each proved, and adding one."""

from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from environments.catalog import renderer_names
from environments.models import Model
from gyre_web.accounts.access import has_role, require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.catalog import selectors
from gyre_web.catalog.models_service import add_checked_model


@require_role(User.Role.VIEWER)
@require_GET
def models(request: HttpRequest) -> HttpResponse:
    return render_models(request)


def render_models(
    request: HttpRequest, given: dict[str, str] | None = None, errors: dict[str, str] | None = None, status: int = 200
) -> HttpResponse:
    context = {
        "models": selectors.list_models(),
        "given": given or {},
        "errors": errors or {},
        "may_add": has_role(request.user, User.Role.OPERATOR),
        "renderers": renderer_names(),
    }
    return render(request, "catalog/models.html", context, status=status)


@require_role(User.Role.OPERATOR)
@require_POST
def add_model(request: HttpRequest) -> HttpResponse:
    given = {name: request.POST.get(name, "").strip() for name in ("name", "path", "renderer")}
    model, errors = add_checked_model(**given, author=signed_in(request))
    if model is None:
        return render_models(request, given, dict(errors), status=422)
    word = "exact in every check" if model.settings["report"]["exact"] else "added; see what is not exact"
    messages.success(request, f"{model.name}: {word}.")
    return redirect("catalog:model", model.pk)


@require_role(User.Role.VIEWER)
@require_GET
def model(request: HttpRequest, model_id: UUID) -> HttpResponse:
    """What is known of a model, and what its renderer proved."""
    found = get_object_or_404(Model, pk=model_id)
    context = {
        "model": found,
        "report": found.settings.get("report"),
        "frames": found.settings.get("frames"),
        "num_rollouts": found.rollouts.count(),
        "may_add": has_role(request.user, User.Role.OPERATOR),
    }
    return render(request, "catalog/model.html", context)
