"""The rollout page, the wall, and the data they load.

From:  signed-in people with at least the role viewer.
To:    templates/watch, and JSON for static/js/watch.
Never: touches the database beyond gyre_web.watch.selectors; writes beyond gyre_web.watch.services.
"""

from typing import Any
from uuid import UUID

import orjson
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from environments.forks import ForkRefused
from environments.models import Call, Node, Rollout
from gyre_web.accounts.access import require_role
from gyre_web.accounts.models import User
from gyre_web.review.models import Label
from gyre_web.review.selectors import describe_labels
from gyre_web.watch import selectors, services, tokens, wall
from gyre_web.watch.network import load_network
from training.models import Run

MAX_WINDOW_NODES = 200
MAX_TOKENS = 4000
MAX_RAW_NODES = 50
MAX_QUERY_CHARS = 200


class BadParameter(ValueError):
    """A query parameter is not what it should be; the text names it."""


def json_response(data: Any) -> HttpResponse:
    response = HttpResponse(orjson.dumps(data, default=str), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


def whole_number(request: HttpRequest, name: str, default: int | None, *, most: int = 2**31 - 1) -> int | None:
    """A query parameter >= 0; raises BadParameter with its name."""
    text = request.GET.get(name)
    if text is None or text == "":
        return default
    if not text.isascii() or not text.isdigit() or int(text[:12]) > most:
        raise BadParameter(f"`{name}` must be a whole number from 0 to {most}.")
    return int(text)


def access_rollout(rollout_id: UUID) -> Rollout:
    rollout = selectors.load_rollout(rollout_id)
    if rollout is None:
        raise Http404("There is no such rollout.")
    return rollout


def access_node(rollout_id: UUID, index: int) -> tuple[Rollout, Node]:
    rollout = access_rollout(rollout_id)
    return rollout, get_object_or_404(Node, rollout=rollout, index=index)


def data_view(view: Any) -> Any:
    """GET, viewers only; a wrong parameter is a 400 that names it."""

    def wrapped(request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponse:
        try:
            return view(request, *args, **kwargs)
        except BadParameter as error:
            return HttpResponseBadRequest(orjson.dumps({"error": str(error)}), content_type="application/json")

    wrapped.__name__ = view.__name__
    return require_role(User.Role.VIEWER)(require_GET(wrapped))


@require_GET
@require_role(User.Role.VIEWER)
def rollout(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    row = access_rollout(rollout_id)
    assert isinstance(request.user, User)
    context = {
        "rollout": row,
        "member": selectors.load_member(row),
        "neighbours": selectors.neighbours(row),
        "may_fork": request.user.has_role(User.Role.OPERATOR),
        "may_review": request.user.has_role(User.Role.REVIEWER),
        "label_verdicts": Label.Verdict.choices,
        "queue": None,
    }
    return render(request, "watch/rollout.html", context)


@require_role(User.Role.OPERATOR)
@require_POST
def fork(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    """{"call_index", "count"}: start rollouts again from there. 201 with their pages' addresses; audited."""
    row = access_rollout(rollout_id)
    try:
        body = orjson.loads(request.body)
        call_index, count = int(body["call_index"]), int(body["count"])
    except (ValueError, TypeError, KeyError):
        return refuse_fork("Send a JSON object with whole numbers `call_index` and `count`.")
    try:
        forks = services.start_forks(by=request, original=row, call_index=call_index, count=count)
    except ForkRefused as refused:
        return refuse_fork(str(refused))
    response = json_response({"forks": [reverse("watch:rollout", args=[new.pk]) for new in forks]})
    response.status_code = 201
    return response


def refuse_fork(message: str) -> HttpResponse:
    return HttpResponseBadRequest(orjson.dumps({"error": message}), content_type="application/json")


@data_view
def snapshot(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    at = whole_number(request, "at", None)
    row = access_rollout(rollout_id)
    return json_response({**selectors.build_snapshot(row, at=at), "labels": describe_labels(row)})


@data_view
def nodes(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    first = whole_number(request, "from", 0) or 0
    count = whole_number(request, "count", selectors.WINDOW_NODES, most=MAX_WINDOW_NODES) or 0
    return json_response({"messages": selectors.load_messages(access_rollout(rollout_id), first, first + count)})


@data_view
def node(request: HttpRequest, rollout_id: UUID, index: int) -> HttpResponse:
    """The whole message, however long."""
    _, row = access_node(rollout_id, index)
    return json_response({"index": index, "message": row.message})


@data_view
def node_tokens(request: HttpRequest, rollout_id: UUID, index: int) -> HttpResponse:
    start = whole_number(request, "from", 0) or 0
    count = whole_number(request, "count", MAX_TOKENS, most=MAX_TOKENS) or 0
    row, found = access_node(rollout_id, index)
    return json_response(tokens.build_tokens(row, found, start, count))


@data_view
def find(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    text = request.GET.get("q", "").replace("\x00", "")
    if not text.strip() or len(text) > MAX_QUERY_CHARS:
        raise BadParameter(f"`q` must have 1 to {MAX_QUERY_CHARS} characters.")
    return json_response({"q": text, **selectors.find_nodes(access_rollout(rollout_id), text)})


@data_view
def timeline(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    return json_response(selectors.build_timeline(access_rollout(rollout_id)))


@data_view
def terminal(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    return json_response(selectors.load_terminal(access_rollout(rollout_id)))


@data_view
def changes(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    row = access_rollout(rollout_id)
    return json_response({"state": row.state, "diff": row.diff})


@data_view
def verifier(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    return json_response(selectors.load_verifier(access_rollout(rollout_id)))


@data_view
def network(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    return json_response(load_network(access_rollout(rollout_id)))


@data_view
def raw(request: HttpRequest, rollout_id: UUID) -> HttpResponse:
    first = whole_number(request, "from", 0) or 0
    count = whole_number(request, "count", 10, most=MAX_RAW_NODES) or 0
    return json_response(selectors.load_raw(access_rollout(rollout_id), first, count))


@data_view
def call_request(request: HttpRequest, rollout_id: UUID, index: int) -> HttpResponse:
    row = access_rollout(rollout_id)
    call = get_object_or_404(Call.objects.select_related("rollout"), rollout=row, index=index)
    return json_response(selectors.rebuild_request(call))


@require_GET
@require_role(User.Role.VIEWER)
def run_wall(request: HttpRequest, run_id: UUID) -> HttpResponse:
    return render(request, "watch/wall.html", {"run": get_object_or_404(Run, pk=run_id)})


@data_view
def wall_data(request: HttpRequest, run_id: UUID) -> HttpResponse:
    return json_response(wall.load_wall(get_object_or_404(Run, pk=run_id)))
