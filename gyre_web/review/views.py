"""Judging rollouts: the label of one, queues, and the next item.

From:  reviewers (role reviewer or above).
To:    gyre_web.review.services; JSON for static/js/review, pages for people.
Never: writes by itself.
"""

from typing import Any
from uuid import UUID

import orjson
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST

from environments.models import Rollout
from gyre_web.accounts.access import require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.review import selectors, services
from gyre_web.review.forms import QueueForm
from gyre_web.review.models import Label, Queue
from gyre_web.runs.models import SavedFilter


def json_response(data: Any, status: int = 200) -> HttpResponse:
    return HttpResponse(orjson.dumps(data, default=str), content_type="application/json", status=status)


def error_response(errors: list[services.LabelError]) -> HttpResponse:
    return json_response({"errors": [{"field": e.field, "message": e.message} for e in errors]}, status=422)


@require_role(User.Role.REVIEWER)
@require_POST
def save_label(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    """Body: {verdict, keep, reward, reason, note, turns?, client_key}. The answer is the acknowledgement the outbox waits for."""
    rollout = get_object_or_404(Rollout, pk=rollout_id)
    try:
        judgement = parse_judgement(request.body)
        label = services.save_label(rollout=rollout, author=signed_in(request), judgement=judgement)
    except services.InvalidLabel as error:
        return error_response(error.errors)
    return json_response({"label": selectors.describe_label(label)})


def parse_judgement(body: bytes) -> services.Judgement:
    """Types of the fields; their meaning is checked by the service."""
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict):
        raise services.InvalidLabel([services.LabelError(field="body", message="Must be one JSON object.")])
    errors = []
    for name in ("verdict", "keep", "reason", "note", "client_key"):
        if not isinstance(data.get(name, ""), str):
            errors.append(services.LabelError(field=name, message="Must be text."))
    reward = data.get("reward")
    if reward is not None and (isinstance(reward, bool) or not isinstance(reward, int | float)):
        errors.append(services.LabelError(field="reward", message="Must be a number, or null for no override."))
    turns = data.get("turns") or {}
    if not isinstance(turns, dict):
        errors.append(services.LabelError(field="turns", message="Must be an object: node index to true or false."))
    if errors:
        raise services.InvalidLabel(errors)
    return services.Judgement(
        turns=turns,
        verdict=data.get("verdict", ""),
        keep=data.get("keep") or Label.Keep.UNSET,
        reward=None if reward is None else float(reward),
        reason=data.get("reason", ""),
        note=data.get("note", ""),
        client_key=data.get("client_key", ""),
    )


@require_role(User.Role.REVIEWER)
@require_http_methods(["GET", "POST"])
def index(request: HttpRequest) -> HttpResponse:
    user = signed_in(request)
    form = QueueForm(request.POST or None, filters=selectors.saved_filters(user))
    if request.method == "POST" and form.is_valid():
        return redirect("review:next", queue_id=make_queue(form, user).pk)
    queues = [selectors.describe_queue(queue, user) for queue in selectors.open_queues()]
    may_close = user.has_role(User.Role.OPERATOR)
    return render(request, "review/index.html", {"queues": queues, "form": form, "may_close": may_close})


@transaction.atomic
def make_queue(form: QueueForm, user: User) -> Queue:
    """A queue of the chosen filter, or of a new one with the queue's name."""
    data = form.cleaned_data
    saved_filter = data["saved_filter"] or SavedFilter.objects.create(
        name=data["name"], owner=user, run=data["run"], query=form.query()
    )
    return services.create_queue(
        name=data["name"], saved_filter=saved_filter, author=user, reviewers_per_item=data["reviewers_per_item"],
        reservation_minutes=data["reservation_minutes"],
    )  # fmt: skip


def access_queue(queue_id: UUID) -> Queue:
    queue = selectors.open_queues().filter(pk=queue_id).first()
    if queue is None:
        raise Http404("There is no such open queue.")
    return queue


@require_role(User.Role.REVIEWER)
@require_GET
def next_item(request: HttpRequest, queue_id: UUID) -> HttpResponse:
    """The rollout page of the next item, reserved for this reviewer, with the queue's progress above it."""
    from gyre_web.watch.selectors import load_member, load_rollout

    user = signed_in(request)
    queue = access_queue(queue_id)
    reservation = services.reserve_next(queue=queue, reviewer=user)
    progress = selectors.describe_queue(queue, user)
    if reservation is None:
        return render(request, "review/empty.html", {"queue": queue, "progress": progress})
    rollout = load_rollout(reservation.rollout_id)
    assert rollout is not None
    context = {
        "rollout": rollout,
        "member": load_member(rollout),
        "neighbours": {"previous": None, "next": None},
        "may_review": True,
        "label_verdicts": Label.Verdict.choices,
        "queue": queue,
        "progress": progress,
    }
    return render(request, "watch/rollout.html", context)


@require_role(User.Role.REVIEWER)
@require_POST
def skip(request: HttpRequest, queue_id: UUID, rollout_id: UUID) -> HttpResponse:
    services.skip_item(queue=access_queue(queue_id), rollout_id=rollout_id, reviewer=signed_in(request))
    return json_response({"skipped": True})


@require_role(User.Role.OPERATOR)
@require_POST
def close(request: HttpRequest, queue_id: UUID) -> HttpResponse:
    services.close_queue(queue=access_queue(queue_id), author=signed_in(request))
    return redirect("review:index")
