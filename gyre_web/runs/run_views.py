"""The page of one run, its live fragment, its chart data, and steering it."""

from dataclasses import dataclass
from typing import Any
from uuid import UUID

import orjson
from django.contrib import messages
from django.db import transaction
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_POST

from gyre_web.accounts.access import has_role, require_role
from gyre_web.accounts.models import User
from gyre_web.audit.services import record
from gyre_web.runs import run_page
from gyre_web.runs.heat import load_heat
from gyre_web.runs.metric_keys import charts_of
from gyre_web.runs.strip import WINDOWS
from training import services
from training.delivery import load_delivery
from training.kinds import WORDS
from training.models import Attempt, Run


@dataclass(frozen=True, kw_only=True)
class Action:
    """A button that steers an attempt: what it asks for, and what that means."""

    wanted: str
    word: str
    icon: str
    explains: str
    danger: bool = False


ACTIONS = {
    Attempt.Wanted.PAUSE: Action(
        wanted="pause",
        word="Pause",
        icon="pause",
        explains="No new groups are dispatched and no new step begins. Rollouts that run are finished and kept;"
        " resume goes on where it stopped.",
    ),
    Attempt.Wanted.RUN: Action(
        wanted="run", word="Resume", icon="play", explains="Groups are dispatched again and training goes on."
    ),
    Attempt.Wanted.STOP: Action(
        wanted="stop",
        word="Stop",
        icon="stop",
        explains="What runs is finished and trained where a step has its groups, then the attempt ends for good."
        " Its weights, rollouts and metrics stay.",
    ),
    Attempt.Wanted.CANCEL: Action(
        wanted="cancel",
        word="Cancel",
        icon="cancel",
        explains="Everything of this attempt ends now: rollouts in progress are ended unscored and an unfinished step is"
        " lost. What was recorded and published stays.",
        danger=True,
    ),
}


def actions_of(attempt: Attempt) -> list[Action]:
    """What can be asked of it now."""
    if attempt.is_over:
        return []
    first = {
        Attempt.Wanted.RUN: [Attempt.Wanted.PAUSE, Attempt.Wanted.STOP],
        Attempt.Wanted.PAUSE: [Attempt.Wanted.RUN, Attempt.Wanted.STOP],
        Attempt.Wanted.STOP: [],
    }
    wanted = first.get(Attempt.Wanted(attempt.wanted))
    return [] if wanted is None else [ACTIONS[key] for key in [*wanted, Attempt.Wanted.CANCEL]]


def page_context(request: HttpRequest, run: Run, attempt: Attempt) -> dict[str, Any]:
    window = request.GET.get("window", "all")
    return {
        "run": run,
        "attempt": attempt,
        "num_steps": attempt.config.get("optimization", {}).get("steps", 0),
        "kind": run_page.kind_of(attempt),
        "kind_word": WORDS.get(run_page.kind_of(attempt), ""),
        "is_online": run_page.kind_of(attempt) == "rl",
        "delivery": load_delivery(attempt),
        "tiles": run_page.build_tiles(attempt),
        "strip": run_page.load_strip(attempt, window),
        "window": window if window in WINDOWS else "all",
        "windows": list(WINDOWS),
        "heat": load_heat(attempt, last=None if request.GET.get("groups") == "all" else 120),
        "events": run_page.load_events(attempt, limit=1000 if request.GET.get("events") == "all" else 40),
        "actions": actions_of(attempt),
        "all_actions": list(ACTIONS.values()),
        "may_steer": has_role(request.user, User.Role.OPERATOR),
    }


@require_role(User.Role.VIEWER)
@require_GET
def detail(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run, attempt, attempts = run_page.access_run(run_id, request.GET.get("attempt", ""))
    context = page_context(request, run, attempt)
    if request.headers.get("HX-Request") == "true":
        return render(request, "runs/_live.html", context)
    context |= {
        "attempts": attempts,
        "charts": charts_of(run_page.kind_of(attempt)),
        "versions": run_page.load_versions(attempt),
        "config": run_page.describe_config(attempt, attempts),
    }
    return render(request, "runs/detail.html", context)


@require_role(User.Role.VIEWER)
@require_GET
def chart_data(request: HttpRequest, run_id: UUID) -> HttpResponse:
    _, attempt, _ = run_page.access_run(run_id, request.GET.get("attempt", ""))
    response = HttpResponse(orjson.dumps(run_page.load_chart_data(attempt)), content_type="application/json")
    response["Cache-Control"] = "no-store"
    return response


@require_role(User.Role.OPERATOR)
@require_POST
def steer(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Pause, resume, stop or cancel the latest attempt, with an optional reason; audited."""
    run, attempt, _ = run_page.access_run(run_id)
    wanted = request.POST.get("wanted", "")
    if wanted not in Attempt.Wanted.values:
        messages.error(request, f"There is nothing called {wanted!r} to ask of a run.")
        return redirect("runs:detail", run_id)
    try:
        with transaction.atomic():
            after = services.request(attempt.pk, Attempt.Wanted(wanted))
            record(
                request,
                f"run.{wanted if wanted != 'run' else 'resume'}",
                run,
                before={"wanted": attempt.wanted, "state": attempt.state},
                after={"wanted": after.wanted, "attempt": attempt.number},
                reason=request.POST.get("reason", "").strip(),
            )
    except services.InvalidTransition as error:
        messages.error(request, str(error))
    else:
        messages.success(request, DONE[wanted])
    return redirect("runs:detail", run_id)


DONE = {
    "run": "Asked to resume.",
    "pause": "Asked to pause. What runs is finished.",
    "stop": "Asked to stop. What runs is finished first.",
    "cancel": "Asked to cancel. It ends within seconds.",
}
