"""Tasks, models and harnesses."""

from uuid import UUID

from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, render
from django.views.decorators.http import require_GET

from environments.models import Task
from gyre_web.accounts.access import require_role
from gyre_web.accounts.models import User
from gyre_web.catalog import selectors
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
def models(request: HttpRequest) -> HttpResponse:
    return render(request, "catalog/models.html", {"models": selectors.list_models()})


@require_role(User.Role.VIEWER)
@require_GET
def harnesses(request: HttpRequest) -> HttpResponse:
    return render(request, "catalog/harnesses.html", {"entries": selectors.list_harnesses()})
