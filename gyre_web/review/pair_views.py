"""The compare page, and judging the pair that is on it."""

from typing import Any
from uuid import UUID

import orjson
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_GET, require_POST

from environments.models import Rollout
from gyre_web.accounts.access import has_role, require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.review import compare, pairs
from gyre_web.review.services import InvalidLabel, LabelError
from gyre_web.review.views import error_response, json_response
from gyre_web.watch.selectors import load_rollout

CHOICES = (("a", "Left", "1"), ("b", "Right", "2"), ("tie", "Tie", "0"), ("neither", "Neither", "x"))
"""(value, word, key)"""


def find(text: str) -> Rollout | None:
    """By id; None where the text is no id."""
    try:
        return load_rollout(UUID(text))
    except ValueError:
        return None


@require_role(User.Role.VIEWER)
@require_GET
def compare_page(request: HttpRequest) -> HttpResponse:
    """?a=<rollout>&b=<rollout>&lens=<lens>; `from` is the run whose pairs are judged one after another."""
    a, b = find(request.GET.get("a", "")), find(request.GET.get("b", ""))
    if a is None or b is None:
        return render(request, "review/compare_empty.html", {"a": a, "b": b}, status=200 if not request.GET else 404)
    context = {
        "comparison": compare.compare(a, b),
        "judgements": pairs.describe_preferences(a, b),
        "may_judge": has_role(request.user, User.Role.REVIEWER) and a.task_id == b.task_id,
        "choices": CHOICES,
        "series": request.GET.get("from", ""),
    }
    return render(request, "review/compare.html", context)


@require_role(User.Role.REVIEWER)
@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """Body: {a, b, choice, reason, client_key}. The answer is the acknowledgement that the page waits for."""
    try:
        fields = parse(request.body)
        row = pairs.save_preference(author=signed_in(request), **fields)
    except InvalidLabel as error:
        return error_response(error.errors)
    swapped = row.first_id == fields["b"].pk
    return json_response({"preference": pairs.describe_preference(row, swapped=swapped)})


def parse(body: bytes) -> dict[str, Any]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError:
        data = None
    if not isinstance(data, dict):
        raise InvalidLabel([LabelError(field="body", message="Must be one JSON object.")])
    errors = [
        LabelError(field=name, message="Must be text.")
        for name in ("a", "b", "choice", "reason", "client_key")
        if not isinstance(data.get(name, ""), str)
    ]
    sides = {name: find(str(data.get(name, ""))) for name in ("a", "b")}
    errors += [
        LabelError(field=name, message="There is no such rollout.") for name, found in sides.items() if not found
    ]
    if errors:
        raise InvalidLabel(errors)
    return {
        **sides,
        "choice": data.get("choice", ""),
        "reason": data.get("reason", ""),
        "client_key": data.get("client_key", ""),
    }


@require_role(User.Role.REVIEWER)
@require_GET
def next_pair(request: HttpRequest) -> HttpResponse:
    """?run=<id>: the next pair of that run, else of any, that this person has not judged."""
    text = request.GET.get("run", "")
    try:
        run_id = UUID(text) if text else None
    except ValueError as error:
        raise Http404("That is not the id of a run.") from error
    pair = pairs.next_pair(reviewer=signed_in(request), run_id=run_id)
    if pair is None:
        return render(request, "review/pairs_done.html", {"run": text})
    return redirect(f"{reverse('review:compare')}?a={pair[0]}&b={pair[1]}&from={text or 'all'}")
