"""Tables of rollouts with their saved filters, and the page of one group."""

from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from gyre_web.accounts.access import check_role, has_role, require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.pages import Pager, page_number
from gyre_web.runs import group_page, run_page
from gyre_web.runs.models import SavedFilter
from gyre_web.runs.rollout_filter import (
    NAMES,
    SORTS,
    RolloutFilterForm,
    apply_filter,
    describe,
    order,
    parse_filter,
    rollouts_of,
)
from training.models import Run

PAGE = 50
MAIN_FIELDS = ("q", "outcome", "disposition", "step", "reviewed")
COLUMNS = (
    ("task", "Task", False),
    ("outcome", "Outcome", False),
    ("reward", "Reward", True),
    ("advantage", "Advantage", True),
    ("disposition", "Training", False),
    ("step", "Step", True),
    ("version", "Version", True),
    ("calls", "Calls", True),
    ("tokens", "Sampled", True),
    ("duration", "Duration", True),
    ("reviewed", "Labels", True),
    ("created", "Age", True),
)


@require_role(User.Role.VIEWER)
@require_GET
def rollouts(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run, attempt, attempts = run_page.access_run(run_id, request.GET.get("attempt", ""))
    wanted = parse_filter(request.GET.dict())
    shown = [attempt] if request.GET.get("attempt") else attempts
    matching = apply_filter(rollouts_of(shown), wanted)
    page, total = page_number(request.GET.get("page", "1")), matching.count()
    rows = order(matching, wanted.sort).select_related("task", "member__group__step").prefetch_related("labels")
    rows = rows.defer("harness_output", "diff", "verifier_log", "member__token_stats")[(page - 1) * PAGE : page * PAGE]
    context = {
        "run": run,
        "rows": rows,
        "wanted": wanted,
        "chips": describe(wanted.active),
        "form": RolloutFilterForm({name: request.GET.get(name, "") for name in NAMES}),
        "main_fields": MAIN_FIELDS,
        "columns": COLUMNS,
        "sorts": SORTS,
        "pager": Pager(page=page, size=PAGE, total=total),
        "saved": SavedFilter.objects.filter(Q(run=run) | Q(run=None)).select_related("owner"),
        "may_save": has_role(request.user, User.Role.REVIEWER),
    }
    fragment = request.headers.get("HX-Request") == "true"
    return render(request, "runs/_rollouts.html" if fragment else "runs/rollouts.html", context)


@require_role(User.Role.REVIEWER)
@require_POST
def save_filter(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_object_or_404(Run, pk=run_id)
    wanted = parse_filter(request.POST.dict())
    name = request.POST.get("name", "").strip()
    if wanted.errors or not name or len(name) > 120:
        messages.error(request, "Not saved: a filter needs a name of at most 120 characters and valid fields.")
    else:
        query = {key: request.POST[key] for key in (*NAMES, "sort") if request.POST.get(key)}
        saved = SavedFilter.objects.create(name=name, owner=signed_in(request), run=run, query=query)
        record(request, "filter.save", saved, after={"name": name, "query": query})
        messages.success(request, f"The filter {name} is saved.")
    return redirect(back_to_table(request, run_id))


def back_to_table(request: HttpRequest, run_id: UUID) -> str:
    """The table with the filter that was posted."""
    query: dict[str, Any] = {key: request.POST[key] for key in (*NAMES, "sort") if request.POST.get(key)}
    return f"{reverse('runs:rollouts', args=[run_id])}?{urlencode(query)}"


@require_POST
def delete_filter(request: HttpRequest, pk: UUID) -> HttpResponse:
    """Its owner, or an admin."""
    saved = get_object_or_404(SavedFilter, pk=pk)
    if saved.owner_id != signed_in(request).pk:
        check_role(request.user, User.Role.ADMIN)
    if saved.queues.exists():
        messages.error(request, f"{saved.name} feeds a review queue; it stays.")
    else:
        record(request, "filter.delete", saved, before={"name": saved.name, "query": saved.query})
        saved.delete()
    return redirect("runs:rollouts", saved.run_id) if saved.run_id else redirect("runs:list")


@require_role(User.Role.VIEWER)
@require_GET
def group(request: HttpRequest, group_id: UUID) -> HttpResponse:
    found = group_page.load_group(group_id)
    neighbours = found.attempt.groups.filter(index__in=(found.index - 1, found.index + 1)).values_list("index", "pk")
    by_index = dict(neighbours)
    context = {
        "group": found,
        "attempt": found.attempt,
        "run": found.attempt.run,
        "columns": group_page.load_columns(found),
        "may_judge": has_role(request.user, User.Role.REVIEWER),
        "previous": by_index.get(found.index - 1),
        "next": by_index.get(found.index + 1),
    }
    return render(request, "runs/group.html", context)
