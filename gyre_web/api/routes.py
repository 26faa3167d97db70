"""REST: the same services and selectors as the pages, by token or session.

Holds: a wrong config answers 422 with every wrong field named; changes are audited like those of pages.
"""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.http import HttpRequest
from django.shortcuts import get_object_or_404
from ninja import NinjaAPI, Query, Schema, Status

from environments.forks import ForkRefused
from environments.models import Image, Node, Rollout
from gyre_web.accounts.models import User
from gyre_web.api import present, schemas
from gyre_web.api.auth import BrowserAuth, TokenAuth, access
from gyre_web.api.data_routes import router as data_router
from gyre_web.api.tasksets import router as tasksets_router
from gyre_web.audit.services import record
from gyre_web.catalog.images import list_images
from gyre_web.runs.rollout_filter import NAMES, apply_filter, order, parse_filter, rollouts_of
from gyre_web.runs.selectors import RunFilter, latest_attempt, list_runs
from gyre_web.watch.services import start_forks
from training import services
from training.config import RunConfig
from training.models import Attempt, Metric, Run

api = NinjaAPI(
    title="Gyre",
    version="1",
    description="Start, watch and steer runs; read every rollout down to the token.",
    auth=[TokenAuth(), BrowserAuth()],
    docs_url=None,
    urls_namespace="api",
)
api.add_router("", tasksets_router)
PAGE = 100


class RunQuery(Schema):
    q: str = ""
    state: str = ""
    owner: str = ""
    sort: str = "-age"
    page: int = 1


@api.get("/runs", response=schemas.RunPage, tags=["runs"])
def get_runs(request: HttpRequest, query: Query[RunQuery]) -> dict[str, Any]:
    """Runs, each with its latest attempt. `state` may be `going`, `over` or a state."""
    access(request, User.Role.VIEWER)
    rows, total = list_runs(RunFilter.from_query({**query.dict(), "page": str(query.page)}))
    return {"items": [present.run_out(row) for row in rows], "total": total}


@api.post("/runs", response={201: schemas.RunDetail, 422: schemas.Problems, 409: schemas.Problem}, tags=["runs"])
def post_run(request: HttpRequest, body: schemas.RunIn) -> Status:
    """Start a run. Missing fields of the config take their defaults."""
    caller = access(request, User.Role.OPERATOR)
    config, errors = services.check_config(body.config)
    if config is None or errors:
        return Status(422, problems(errors))
    source = get_object_or_404(Run, pk=body.cloned_from) if body.cloned_from else None
    try:
        with transaction.atomic():
            attempt = services.start_run(name=body.name, config=config, owner=caller.user, cloned_from=source)
            record(caller.user, "run.start", attempt.run, after={"name": body.name, "differences": differences(config)})
    except services.NameTaken as error:
        return Status(409, {"detail": str(error)})
    return Status(201, present.run_detail(attempt.run, [attempt]))


def problems(errors: list[services.FieldError]) -> dict[str, Any]:
    number = len(errors)
    return {
        "detail": f"{number} field{'s are' if number != 1 else ' is'} wrong; nothing was done.",
        "errors": [{"field": error.field, "message": error.message, "remedy": error.remedy} for error in errors],
    }


def differences(config: RunConfig) -> list[dict[str, Any]]:
    return [{"field": name, "value": value, "default": base} for name, value, base in services.differences(config)]


@api.post("/check-config", response={200: schemas.CheckOut, 422: schemas.Problems}, tags=["runs"])
def check_config(request: HttpRequest, body: schemas.CheckIn) -> Status:
    """Whether a run could start with this config; starts nothing."""
    access(request, User.Role.VIEWER)
    config, errors = services.check_config(body.config)
    if config is None or errors:
        return Status(422, problems(errors))
    body_out = {
        "config": config.model_dump(mode="json"),
        "differences": differences(config),
        "estimate": services.estimate(config),
    }
    return Status(200, body_out)


@api.get("/runs/{uuid:run_id}", response=schemas.RunDetail, tags=["runs"])
def get_run(request: HttpRequest, run_id: UUID) -> dict[str, Any]:
    access(request, User.Role.VIEWER)
    run = get_object_or_404(Run.objects.select_related("owner"), pk=run_id)
    return present.run_detail(run, list(run.attempts.order_by("-number")))


@api.post("/runs/{uuid:run_id}/steer", response={200: schemas.AttemptOut, 409: schemas.Problem}, tags=["runs"])
def steer_run(request: HttpRequest, run_id: UUID, body: schemas.SteerIn) -> Status:
    """Ask of the latest attempt: `run` (resume), `pause`, `stop` (finish what runs) or `cancel` (end now)."""
    caller = access(request, User.Role.OPERATOR)
    run = get_object_or_404(Run, pk=run_id)
    attempt = latest_attempt(run.pk)
    try:
        with transaction.atomic():
            after = services.request(attempt.pk, body.wanted)
            record(
                caller.user,
                f"run.{body.wanted if body.wanted != 'run' else 'resume'}",
                run,
                before={"wanted": attempt.wanted, "state": attempt.state},
                after={"wanted": after.wanted, "attempt": attempt.number},
                reason=body.reason,
            )
    except services.InvalidTransition as error:
        return Status(409, {"detail": str(error)})
    return Status(200, present.attempt_out(after))


@api.get("/runs/{uuid:run_id}/versions", response=list[schemas.VersionOut], tags=["runs"])
def get_versions(request: HttpRequest, run_id: UUID) -> list[dict[str, Any]]:
    """Of the latest attempt, oldest first."""
    access(request, User.Role.VIEWER)
    return [present.version_out(version) for version in latest_attempt(run_id).versions.order_by("number")]


@api.get("/runs/{uuid:run_id}/metrics", response=list[schemas.MetricOut], tags=["runs"])
def get_metrics(request: HttpRequest, run_id: UUID, key: str = "", after_step: int = -1) -> list[dict[str, Any]]:
    """Of the latest attempt, by step."""
    access(request, User.Role.VIEWER)
    rows = Metric.objects.filter(attempt=latest_attempt(run_id), step__gt=after_step).order_by("step", "key")
    if key:
        rows = rows.filter(key=key)
    return [dict(row) for row in rows.values("kind", "step", "key", "value")[:100_000]]


@api.get("/attempts/{uuid:attempt_id}", response=schemas.AttemptDetail, tags=["runs"])
def get_attempt(request: HttpRequest, attempt_id: UUID) -> dict[str, Any]:
    access(request, User.Role.VIEWER)
    return present.attempt_detail(get_object_or_404(Attempt, pk=attempt_id))


@api.get("/runs/{uuid:run_id}/rollouts", response={200: schemas.RolloutPage, 422: schemas.Problems}, tags=["rollouts"])
def get_rollouts(request: HttpRequest, run_id: UUID, page: int = 1) -> Status:
    """Rollouts of a run. Takes the filter fields and `sort` of the page as query parameters, 100 a page."""
    access(request, User.Role.VIEWER)
    run = get_object_or_404(Run, pk=run_id)
    wanted = parse_filter(request.GET.dict())
    unknown = sorted(set(request.GET) - {*NAMES, "sort", "page"})
    errors = [
        services.FieldError(field=name, message=" ".join(texts), remedy="Correct it.")
        for name, texts in wanted.errors.items()
    ] + [
        services.FieldError(field=name, message="There is no such filter.", remedy=f"There are: {', '.join(NAMES)}.")
        for name in unknown
    ]
    if errors:
        return Status(422, problems(errors))
    matching = apply_filter(rollouts_of(run.attempts.all()), wanted)
    rows = (
        order(matching, wanted.sort)
        .select_related("task", "member")
        .defer("harness_output", "diff", "verifier_log", "member__token_stats")
    )
    start = (max(1, page) - 1) * PAGE
    items = [present.rollout_out(rollout) for rollout in rows[start : start + PAGE]]
    return Status(200, {"items": items, "total": matching.count(), "page": max(1, page)})


@api.get("/rollouts/{uuid:rollout_id}", response=schemas.RolloutDetail, tags=["rollouts"])
def get_rollout(request: HttpRequest, rollout_id: UUID) -> dict[str, Any]:
    access(request, User.Role.VIEWER)
    rollout = get_object_or_404(Rollout.objects.select_related("task", "member"), pk=rollout_id)
    return present.rollout_detail(rollout)


@api.post(
    "/rollouts/{uuid:rollout_id}/fork",
    response={201: list[schemas.RolloutOut], 422: schemas.Problem},
    tags=["rollouts"],
)
def fork_rollout(request: HttpRequest, rollout_id: UUID, body: schemas.ForkIn) -> Status:
    """Start rollouts again from call `call_index` of this one: they share its record up to there."""
    caller = access(request, User.Role.OPERATOR)
    rollout = get_object_or_404(Rollout.objects.select_related("task", "harness", "model"), pk=rollout_id)
    try:
        forks = start_forks(by=caller.user, original=rollout, call_index=body.call_index, count=body.count)
    except ForkRefused as refused:
        return Status(422, {"detail": str(refused)})
    return Status(201, [present.rollout_out(fork) for fork in forks])


@api.get("/rollouts/{uuid:rollout_id}/network", response=list[schemas.EgressRequestOut], tags=["rollouts"])
def get_network(request: HttpRequest, rollout_id: UUID) -> Any:
    """What its sandbox asked of the network, in order of time, whether it was let through or not."""
    access(request, User.Role.VIEWER)
    return get_object_or_404(Rollout, pk=rollout_id).egress_requests.all()


@api.get("/images", response=list[schemas.ImageOut], tags=["images"])
def get_images(request: HttpRequest) -> Any:
    """Images that hosts have or are making, those being made first."""
    access(request, User.Role.VIEWER)
    return list_images()


@api.get("/images/{uuid:image_id}", response=schemas.ImageDetail, tags=["images"])
def get_image(request: HttpRequest, image_id: UUID) -> Image:
    """One image with the log of its making."""
    access(request, User.Role.VIEWER)
    return get_object_or_404(Image, pk=image_id)


@api.get("/rollouts/{uuid:rollout_id}/nodes", response=list[schemas.NodeOut], tags=["rollouts"])
def get_nodes(request: HttpRequest, rollout_id: UUID, after: int = -1, limit: int = 100) -> list[dict[str, Any]]:
    """Nodes of the tree in order, with token ids and logprobs; `after` is the last index one has."""
    access(request, User.Role.VIEWER)
    rollout = get_object_or_404(Rollout.objects.only("pk"), pk=rollout_id)
    nodes = Node.objects.filter(rollout=rollout, index__gt=after).order_by("index")[: min(max(limit, 1), 500)]
    return [present.node_out(node) for node in nodes]


api.add_router("", data_router)
