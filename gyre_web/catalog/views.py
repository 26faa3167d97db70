"""Tasks and harnesses."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse, QueryDict
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from environments.harnesses import HARNESSES, InvalidHarness
from environments.models import Harness, Task, TaskSet
from gyre_web.accounts.access import has_role, require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.catalog import selectors, services, trials
from gyre_web.catalog.harness_form import build_controls, settings_from_post
from gyre_web.pages import Pager, page_number

PAGE = 50
CHECK_WORDS = (("good", "Passed"), ("wrong", "Failed"), ("never", "Not checked"))


@require_role(User.Role.VIEWER)
@require_GET
def tasks(request: HttpRequest) -> HttpResponse:
    return _render_tasks(request, request.GET, None)


@require_role(User.Role.VIEWER)
@require_GET
def taskset(request: HttpRequest, name: str) -> HttpResponse:
    found = get_object_or_404(selectors.list_tasksets(), name=name)
    query = request.GET.copy()
    query["taskset"] = name
    return _render_tasks(request, query, found)


def _render_tasks(request: HttpRequest, query: QueryDict, taskset: TaskSet | None) -> HttpResponse:
    found = selectors.list_tasks(query)
    page, total = page_number(query.get("page", "1")), found.count()
    context: dict[str, Any] = {
        "tasks": found[(page - 1) * PAGE : page * PAGE],
        "pager": Pager(page=page, size=PAGE, total=total),
        "chosen": query,
        "taskset": taskset,
        "splits": Task.Split.choices,
        "checks": CHECK_WORDS,
    }
    if request.headers.get("HX-Request") == "true":
        return render(request, "catalog/_tasks.html", context)
    families = Task.objects.exclude(family="").order_by("family")
    if taskset:
        families = families.filter(taskset=taskset)
        context["versions"] = selectors.list_versions(taskset)
    else:
        context["tasksets"] = selectors.list_tasksets()
    context |= {
        "families": families.values_list("family", flat=True).distinct(),
        "may_import": has_role(request.user, User.Role.OPERATOR),
    }
    return render(request, "catalog/taskset.html" if taskset else "catalog/tasks.html", context)


@require_role(User.Role.VIEWER)
@require_GET
def task(request: HttpRequest, task_id: UUID) -> HttpResponse:
    return _render_task(request, task_id)


def _render_task(request: HttpRequest, task_id: UUID, refusal: trials.TrialRefused | None = None) -> HttpResponse:
    found = get_object_or_404(Task.objects.select_related("taskset"), pk=task_id)
    rollouts = found.rollouts.select_related("harness", "member__group__attempt__run").defer(
        "harness_output", "diff", "verifier_log", "member__token_stats"
    )
    places = trials.list_places(found)
    context = {
        "task": found,
        "files": selectors.load_files(found),
        "rates": selectors.pass_rates_by_version(found),
        "harness_rates": selectors.pass_rates_by_harness(found),
        "rollouts": rollouts[:25],
        "num_rollouts": found.rollouts.count(),
        "places": places,
        "serves": any(not place.is_expert for place in places),
        "harnesses": Harness.objects.all(),
        "may_try": has_role(request.user, User.Role.OPERATOR),
        "refusal": refusal,
    }
    return render(request, "catalog/task.html", context, status=409 if refusal else 200)


@require_role(User.Role.OPERATOR)
@require_POST
def try_task(request: HttpRequest, task_id: UUID) -> HttpResponse:
    """One rollout of this task, outside of any run; the page of the rollout opens."""
    found = get_object_or_404(Task, pk=task_id)
    harness = Harness.objects.filter(name=request.POST.get("harness", "")).first()
    try:
        if harness is None:
            raise trials.TrialRefused("harness", "There is no such harness; choose one of the list.")
        rollout = trials.start_trial(
            task=found, harness=harness, place=request.POST.get("place", ""), user=signed_in(request)
        )
    except trials.TrialRefused as error:
        return _render_task(request, task_id, error)
    return redirect("watch:rollout", rollout.pk)


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
