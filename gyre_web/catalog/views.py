"""Tasks and harnesses."""

from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods

from environments.harnesses import HARNESSES, InvalidHarness
from environments.models import Harness, Task
from gyre_web.accounts.access import has_role, require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.catalog import selectors, services
from gyre_web.catalog.harness_form import build_controls, settings_from_post
from gyre_web.pages import Pager, page_number

PAGE = 50


@require_role(User.Role.VIEWER)
@require_GET
def tasks(request: HttpRequest) -> HttpResponse:
    found = selectors.list_tasks(request.GET)
    page, total = page_number(request.GET.get("page", "1")), found.count()
    context = {
        "tasks": found[(page - 1) * PAGE : page * PAGE],
        "pager": Pager(page=page, size=PAGE, total=total),
        "chosen": request.GET,
        "splits": Task.Split.choices,
    }
    if request.headers.get("HX-Request") == "true":
        return render(request, "catalog/_tasks.html", context)
    context |= {
        "tasksets": selectors.list_tasksets(),
        "families": Task.objects.exclude(family="").order_by("family").values_list("family", flat=True).distinct(),
    }
    return render(request, "catalog/tasks.html", context)


@require_role(User.Role.VIEWER)
@require_GET
def task(request: HttpRequest, task_id: UUID) -> HttpResponse:
    found = get_object_or_404(Task.objects.select_related("taskset"), pk=task_id)
    rollouts = found.rollouts.select_related("harness", "member__group__attempt__run").defer(
        "harness_output", "diff", "verifier_log", "member__token_stats"
    )
    context = {
        "task": found,
        "files": selectors.load_files(found),
        "rates": selectors.pass_rates_by_version(found),
        "rollouts": rollouts[:25],
        "num_rollouts": found.rollouts.count(),
    }
    return render(request, "catalog/task.html", context)


@require_role(User.Role.VIEWER)
@require_GET
def harnesses(request: HttpRequest) -> HttpResponse:
    context = {
        "entries": selectors.list_harnesses(),
        "programs": selectors.programs_to_add(),
        "may_add": has_role(request.user, User.Role.OPERATOR),
    }
    return render(request, "catalog/harnesses.html", context)


@require_role(User.Role.OPERATOR)
@require_http_methods(["GET", "POST"])
def new_harness(request: HttpRequest) -> HttpResponse:
    """GET: ?program=NAME, or ?from=ID to begin with another harness's settings."""
    return add_harness(request) if request.method == "POST" else show_harness_form(request)


def show_harness_form(request: HttpRequest) -> HttpResponse:
    source = find_harness(request.GET.get("from", ""))
    program = source.program if source else request.GET.get("program", "command")
    if program not in HARNESSES:
        raise Http404(f"There is no program {program}.")
    context = {
        "program": program,
        "name": f"{source.name}-2" if source else program,
        "delivery": source.delivery if source else HARNESSES[program].habits.delivery,
        "controls": build_controls(program, source.settings if source else {}),
        "problems": {},
    }
    return render(request, "catalog/new_harness.html", context)


def find_harness(pk: str) -> Harness | None:
    if not pk:
        return None
    try:
        return get_object_or_404(Harness, pk=UUID(pk))
    except ValueError:
        raise Http404("That is no harness.") from None


def add_harness(request: HttpRequest) -> HttpResponse:
    program = request.POST.get("program", "")
    if program not in HARNESSES:
        raise Http404(f"There is no program {program}.")
    name, delivery = request.POST.get("name", "").strip(), request.POST.get("delivery", "")
    settings = settings_from_post(program, request.POST.dict())
    try:
        harness = services.add_harness(
            user=signed_in(request), name=name, program=program, delivery=delivery, settings=settings
        )
    except InvalidHarness as error:
        problems: dict[str, list[str]] = {}
        for field, message in error.problems:
            problems.setdefault(field.partition(".")[0], []).append(message)
        context = {
            "program": program,
            "name": name,
            "delivery": delivery,
            "controls": build_controls(program, settings, problems),
            "problems": problems,
        }
        return render(request, "catalog/new_harness.html", context, status=422)
    messages.success(request, f"{harness.name} can be chosen for runs now.")
    return redirect("catalog:harnesses")
