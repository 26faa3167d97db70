"""REST of evaluations, data sets, exports, pair judgements, labels' turn marks, models and a run's numbers as files."""

from typing import Any
from uuid import UUID

from django.db import transaction
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import get_object_or_404
from ninja import Field, Router, Schema, Status

from environments.models import Model, Rollout
from gyre_web.accounts.models import User
from gyre_web.api import schemas
from gyre_web.api.auth import access
from gyre_web.catalog.models_service import add_checked_model
from gyre_web.exports import items
from gyre_web.exports.views import export_file
from gyre_web.review import pairs
from gyre_web.review.services import InvalidLabel, Judgement, LabelError, save_label
from gyre_web.runs import evaluations
from gyre_web.runs.evaluation_views import metrics_response
from gyre_web.runs.selectors import latest_attempt
from training.datasets import DatasetError
from training.delivery import load_delivery
from training.exports.services import ExportRefused
from training.models import Dataset, Export, Run

router = Router()


class RateOut(Schema):
    value: float
    low: float
    high: float
    tasks: int
    missing: int
    method: str


class DifferenceOut(Schema):
    value: float
    low: float
    high: float
    tasks: int
    better: int
    worse: int
    is_clear: bool


class SideOut(Schema):
    name: str
    a: RateOut | None
    b: RateOut | None
    difference: DifferenceOut | None = Field(description="b minus a, paired by task.")


class EvaluationOut(Schema):
    id: int
    name: str
    subject: str = Field(description="The model, or the version that an evaluation run measured.")
    kind: str
    harness: str
    tasksets: str
    version: int
    samples_per_task: int
    scored: int
    solved: int
    missing: int
    pass_at: dict[str, RateOut]


class ComparisonOut(Schema):
    a: EvaluationOut
    b: EvaluationOut
    num_common: int
    overall: list[SideOut]
    families: list[SideOut]


class FilterIn(Schema):
    name: str = Field(min_length=1, max_length=120)
    run: UUID | None = Field(None, description="Only rollouts of this run.")
    filter: dict[str, Any] = Field(default_factory=dict, description="The fields of the rollout tables' filter.")


class DatasetIn(FilterIn):
    kind: str = "rollouts"


class DatasetOut(Schema):
    id: UUID
    name: str
    kind: str
    num_items: int
    digest: str
    query: dict[str, Any]
    made_by: str


class MadeDatasetOut(DatasetOut):
    left_out: dict[str, int]


class ExportIn(FilterIn):
    format: str


class ExportOut(Schema):
    id: UUID
    name: str
    format: str
    state: str
    total: int
    done: int
    left_out: dict[str, int]
    error: str
    size_bytes: int
    query: dict[str, Any]
    made_by: str


class PairIn(Schema):
    a: UUID
    b: UUID
    choice: str = Field(description="a, b, tie or neither")
    reason: str = ""
    client_key: str = Field(description="New for each judgement; sending it again is harmless.")


class PairOut(Schema):
    id: UUID
    choice: str
    author: str
    reason: str
    superseded: bool


class LabelIn(Schema):
    verdict: str = ""
    keep: str = "unset"
    reward: float | None = None
    reason: str = ""
    note: str = ""
    turns: dict[str, bool] = Field(default_factory=dict, description="Node index: was this turn right?")
    client_key: str


class LabelOut(Schema):
    id: UUID
    effect: str


class LineOut(Schema):
    reason: str
    rollouts: int
    tokens: int
    rollouts_percent: float
    tokens_percent: float
    delivered: bool


class DeliveryOut(Schema):
    rollouts: int
    tokens: int
    lines: list[LineOut]


class ModelIn(Schema):
    name: str = Field(min_length=1, max_length=100)
    path: str = Field(min_length=1, description="Hugging Face directory on this machine, or hub name.")
    renderer: str = Field("", description="A name of environments.rendering; empty: chosen and proven.")


class ModelOut(Schema):
    id: UUID
    name: str
    path: str
    renderer: str
    context_length: int
    num_parameters: int
    report: dict[str, Any]


def wrong(errors: list[tuple[str, str]]) -> Status:
    found = [{"field": field, "message": message, "remedy": ""} for field, message in errors]
    return Status(422, {"detail": " ".join(message for _, message in errors), "errors": found})


REFUSALS = (items.WrongFilter, DatasetError, ExportRefused)


def refusal(error: items.WrongFilter | DatasetError | ExportRefused) -> Status:
    if isinstance(error, items.WrongFilter):
        return wrong([(name, " ".join(texts)) for name, texts in error.errors.items()])
    return wrong([(error.field, str(error))])


def label_errors(error: InvalidLabel) -> Status:
    return wrong([(each.field, each.message) for each in error.errors])


@router.get("/evaluations", response=list[EvaluationOut], tags=["evaluations"])
def get_evaluations(request: HttpRequest) -> list[dict[str, Any]]:
    """Finished ones of every run, newest first."""
    access(request, User.Role.VIEWER)
    return [evaluations.evaluation_out(each) for each in evaluations.list_evaluations()]


@router.get("/evaluations/compare", response={200: ComparisonOut, 404: schemas.Problem}, tags=["evaluations"])
def compare_evaluations(request: HttpRequest, a: int, b: int) -> Status:
    """Two evaluations by id: rates with intervals, and paired differences on the tasks both tried."""
    access(request, User.Role.VIEWER)
    one, other = evaluations.find_evaluation(str(a)), evaluations.find_evaluation(str(b))
    if one is None or other is None:
        return Status(404, {"detail": "There is no such finished evaluation."})
    found = evaluations.compare(one, other)
    body = {
        "a": evaluations.evaluation_out(one),
        "b": evaluations.evaluation_out(other),
        "num_common": found.num_common,
        "overall": found.overall,
        "families": found.families,
    }
    return Status(200, body)


@router.get("/runs/{uuid:run_id}/metrics.{form}", tags=["runs"], response=None)
def get_metrics_file(request: HttpRequest, run_id: UUID, form: str) -> HttpResponseBase:
    """Every number of the latest attempt, as `csv` or `json`."""
    access(request, User.Role.VIEWER)
    attempt = latest_attempt(run_id)
    return metrics_response(attempt, form, f"{attempt.run.name}-{attempt.number}")


@router.get("/runs/{uuid:run_id}/delivery", response=DeliveryOut, tags=["runs"])
def get_delivery(request: HttpRequest, run_id: UUID) -> Any:
    """What share of rollouts and tokens was trained, and why the rest was not; adds up to 100 %."""
    access(request, User.Role.VIEWER)
    return load_delivery(latest_attempt(run_id))


@router.get("/datasets", response=list[DatasetOut], tags=["data"])
def get_datasets(request: HttpRequest) -> Any:
    access(request, User.Role.VIEWER)
    return list(Dataset.objects.defer("items")[:500])


@router.post("/datasets", response={201: MadeDatasetOut, 422: schemas.Problems}, tags=["data"])
def post_dataset(request: HttpRequest, body: DatasetIn) -> Status:
    """Freeze a selection: `rollouts` of a filter, or the judged `pairs` of a run."""
    caller = access(request, User.Role.REVIEWER)
    try:
        with transaction.atomic():
            made = items.make_dataset(name=body.name, kind=body.kind, choice=choice_of(body), author=caller.user)
    except REFUSALS as error:
        return refusal(error)
    fields = {name: getattr(made.dataset, name) for name in DatasetOut.model_fields}
    return Status(201, {**fields, "left_out": made.left_out})


def choice_of(body: FilterIn) -> items.Choice:
    return items.build_choice(body.filter, get_object_or_404(Run, pk=body.run) if body.run else None)


@router.get("/exports", response=list[ExportOut], tags=["data"])
def get_exports(request: HttpRequest) -> Any:
    access(request, User.Role.VIEWER)
    return list(Export.objects.defer("items")[:500])


@router.post("/exports", response={201: ExportOut, 422: schemas.Problems}, tags=["data"])
def post_export(request: HttpRequest, body: ExportIn) -> Status:
    """Begin an export; GET it until its state is `done`, then download it."""
    caller = access(request, User.Role.REVIEWER)
    try:
        with transaction.atomic():
            made = items.make_export(name=body.name, form=body.format, choice=choice_of(body), author=caller.user)
    except REFUSALS as error:
        return refusal(error)
    return Status(201, made)


@router.get("/exports/{uuid:pk}", response=ExportOut, tags=["data"])
def get_export(request: HttpRequest, pk: UUID) -> Any:
    access(request, User.Role.VIEWER)
    return get_object_or_404(Export.objects.defer("items"), pk=pk)


@router.get("/exports/{uuid:pk}/file", response=None, tags=["data"])
def get_export_file(request: HttpRequest, pk: UUID) -> HttpResponseBase:
    """The zip."""
    access(request, User.Role.VIEWER)
    return export_file(get_object_or_404(Export.objects.defer("items"), pk=pk))


@router.post("/pairs", response={200: PairOut, 422: schemas.Problems}, tags=["review"])
def post_pair(request: HttpRequest, body: PairIn) -> Status:
    """Say which of two ended rollouts of one task is better."""
    caller = access(request, User.Role.REVIEWER)
    a, b = (Rollout.objects.filter(pk=pk).first() for pk in (body.a, body.b))
    if a is None or b is None:
        return label_errors(InvalidLabel([LabelError(field="b" if a else "a", message="There is no such rollout.")]))
    try:
        row = pairs.save_preference(
            a=a, b=b, author=caller.user, choice=body.choice, reason=body.reason, client_key=body.client_key
        )
    except InvalidLabel as error:
        return label_errors(error)
    return Status(200, pairs.describe_preference(row, swapped=row.first_id == b.pk))


@router.post("/rollouts/{uuid:rollout_id}/labels", response={200: LabelOut, 422: schemas.Problems}, tags=["review"])
def post_label(request: HttpRequest, rollout_id: UUID, body: LabelIn) -> Status:
    """Judge a rollout: verdict, keep or drop, reward, marks on its turns."""
    caller = access(request, User.Role.REVIEWER)
    rollout = get_object_or_404(Rollout, pk=rollout_id)
    try:
        label = save_label(rollout=rollout, author=caller.user, judgement=Judgement(**body.dict()))
    except InvalidLabel as error:
        return label_errors(error)
    return Status(200, {"id": label.pk, "effect": label.effect})


@router.get("/models", response=list[ModelOut], tags=["catalog"])
def get_models(request: HttpRequest) -> list[dict[str, Any]]:
    access(request, User.Role.VIEWER)
    return [model_out(model) for model in Model.objects.all()]


@router.post("/models", response={201: ModelOut, 422: schemas.Problems}, tags=["catalog"])
def post_model(request: HttpRequest, body: ModelIn) -> Status:
    """Add a model and put its renderer to the proof; the answer holds the report."""
    caller = access(request, User.Role.OPERATOR)
    model, errors = add_checked_model(name=body.name, path=body.path, renderer=body.renderer, author=caller.user)
    if model is None:
        return wrong(errors)
    return Status(201, model_out(model))


def model_out(model: Model) -> dict[str, Any]:
    names = ("id", "name", "path", "renderer", "context_length", "num_parameters")
    return {**{name: getattr(model, name) for name in names}, "report": model.settings.get("report", {})}
