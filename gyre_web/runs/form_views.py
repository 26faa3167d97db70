"""The new-run form: show, check while typing, read pasted TOML, start.

From:  an operator's browser (static/js/run_form.js).
To:    training.services.
Holds: everything wrong is named at once, next to its field; nothing is started while anything is wrong.
"""

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from gyre_web.accounts.access import require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.runs.form_fields import as_text, build_sections, data_from_post, field_kinds, flat_values
from gyre_web.runs.selectors import latest_attempt
from training import services
from training.config import RunConfig
from training.models import Attempt, Run

MAX_NAME = 120


@require_role(User.Role.OPERATOR)
@require_http_methods(["GET", "POST"])
def new_run(request: HttpRequest) -> HttpResponse:
    return start(request) if request.method == "POST" else show_form(request)


@require_GET
def show_form(request: HttpRequest) -> HttpResponse:
    source = find_source(request.GET.get("from", ""))
    data = source.config if source else RunConfig().model_dump(mode="json")
    data = merged(RunConfig().model_dump(mode="json"), data) if source else data
    data = merged(data, asked_for(request))
    name = free_name(source.run.name if source else f"{data['kind']}" if data["kind"] != "rl" else "run")
    return render_form(request, name=name, data=data, source=source)


def asked_for(request: HttpRequest) -> dict[str, Any]:
    """Fields that a link prefills, by dotted name: ?kind=evaluation&model.start_from=demo/1/9."""
    known = field_kinds()
    return data_from_post({name: str(value) for name, value in request.GET.items() if name in known})


def find_source(run_id: str) -> Attempt | None:
    """The latest attempt of the run to clone."""
    if not run_id:
        return None
    return latest_attempt(run_id)


def free_name(base: str) -> str:
    """`name-2`, `name-3`, ...: the first that no run has."""
    taken = set(Run.objects.filter(name__startswith=base[:100]).values_list("name", flat=True))
    stem = base[:100]
    return next(name for name in [stem, *(f"{stem}-{n}" for n in range(2, len(taken) + 3))] if name not in taken)


def render_form(
    request: HttpRequest, *, name: str, data: dict[str, Any], source: Attempt | None, status: int = 200
) -> HttpResponse:
    context = {
        "name": name,
        "sections": build_sections(data),
        "source": source,
        "check": check(name, data, source),
        "check_url": reverse("runs:check"),
    }
    return render(request, "runs/new.html", context, status=status)


def check(name: str, data: dict[str, Any], source: Attempt | None) -> dict[str, Any]:
    """Everything the form shows beside its fields: errors, differences, TOML, estimate."""
    config, errors = services.check_config(data)
    found = [{"field": error.field, "message": error.message, "remedy": error.remedy} for error in errors]
    found = check_name(name) + found
    if config is None:
        return {"ok": False, "errors": found, "differences": None, "toml": None, "estimate": None}
    base = RunConfig.model_validate(source.config) if source else None
    return {
        "ok": not found,
        "errors": found,
        "differences": describe_differences(config, None),
        "clone_differences": describe_differences(config, base) if base else None,
        "toml": services.config_to_toml(config),
        "estimate": services.estimate(config),
    }


def describe_differences(config: RunConfig, base: RunConfig | None) -> list[dict[str, str]]:
    return [
        {"field": name, "value": show_value(value), "base": show_value(other)}
        for name, value, other in services.differences(config, base)
    ]


def show_value(value: Any) -> str:
    """A value in the differences: tables of a mixture by their task set."""
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return ", ".join(f"{part.get('taskset')} × {as_text(part.get('weight'))}" for part in value)
    return as_text(value) or "none"


def check_name(name: str) -> list[dict[str, str]]:
    if not name.strip():
        return [{"field": "name", "message": "The run has no name.", "remedy": "Give it one to find it by."}]
    if len(name) > MAX_NAME:
        return [{"field": "name", "message": "The name is too long.", "remedy": f"Use at most {MAX_NAME} characters."}]
    if Run.objects.filter(name=name).exists():
        return [{"field": "name", "message": "There is a run of this name.", "remedy": f"{free_name(name)} is free."}]
    return []


@require_role(User.Role.OPERATOR)
@require_POST
def check_form(request: HttpRequest) -> HttpResponse:
    """Asked while typing: the form's fields in, JSON out."""
    source = find_source(request.POST.get("from", ""))
    data = data_from_post(request.POST.dict())
    return JsonResponse(check(request.POST.get("name", ""), data, source))


@require_role(User.Role.OPERATOR)
@require_POST
def read_toml(request: HttpRequest) -> HttpResponse:
    """Pasted TOML in; the text of every control out, or what is wrong."""
    try:
        data = services.toml_to_data(request.POST.get("toml", ""))
    except services.TomlError as error:
        return JsonResponse({"error": f"This is not TOML. {error}"}, status=422)
    config, errors = services.check_config(data)
    whole = config.model_dump(mode="json") if config else merged(RunConfig().model_dump(mode="json"), data)
    return JsonResponse({"values": flat_values(whole), "errors": [vars_of(error) for error in errors]})


def vars_of(error: services.FieldError) -> dict[str, str]:
    return {"field": error.field, "message": error.message, "remedy": error.remedy}


def merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` on top of `base`, table by table."""
    result = dict(base)
    for key, value in over.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) and isinstance(value, dict) else value
    return result


def start(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    source = find_source(request.POST.get("from", ""))
    name = request.POST.get("name", "").strip()
    data = data_from_post(request.POST.dict())
    config, errors = services.check_config(data)
    if config is None or errors or check_name(name):
        return render_form(request, name=name, data=data, source=source, status=422)
    try:
        attempt = services.start_run(name=name, config=config, owner=user, cloned_from=source.run if source else None)
    except services.NameTaken as error:
        messages.error(request, str(error))
        return render_form(request, name=name, data=data, source=source, status=422)
    record(request, "run.start", attempt.run, after={"name": name, "differences": describe_differences(config, None)})
    messages.success(request, f"{name} is queued; the controller takes it up within seconds.")
    return redirect("runs:detail", attempt.run_id)
