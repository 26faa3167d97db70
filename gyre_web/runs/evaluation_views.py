"""All evaluations, and two of them compared; the numbers of a run as files."""

import csv
import io
from uuid import UUID

import orjson
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from gyre_web.accounts.access import has_role, require_role
from gyre_web.accounts.models import User
from gyre_web.runs import evaluations, run_page
from training.metrics import define, load_metrics
from training.models import Attempt


@require_role(User.Role.VIEWER)
@require_GET
def compare(request: HttpRequest) -> HttpResponse:
    """?a=<id>&b=<id>: without b the list to choose from."""
    a = evaluations.find_evaluation(request.GET.get("a", ""))
    b = evaluations.find_evaluation(request.GET.get("b", ""))
    context = {
        "evaluations": evaluations.list_evaluations(),
        "a": a,
        "b": b,
        "comparison": evaluations.compare(a, b) if a and b else None,
        "may_start": has_role(request.user, User.Role.OPERATOR),
    }
    return render(request, "runs/evaluations.html", context)


@require_role(User.Role.VIEWER)
@require_GET
def metrics_file(request: HttpRequest, run_id: UUID, form: str) -> HttpResponse:
    """Every number of an attempt, as CSV or JSON."""
    run, attempt, _ = run_page.access_run(run_id, request.GET.get("attempt", ""))
    return metrics_response(attempt, form, f"{run.name}-{attempt.number}")


def metrics_response(attempt: Attempt, form: str, name: str) -> HttpResponse:
    """Also of REST. form: csv or json."""
    if form == "json":
        response = HttpResponse(metrics_json(attempt), content_type="application/json")
    elif form == "csv":
        response = HttpResponse(metrics_csv(attempt), content_type="text/csv; charset=utf-8")
    else:
        raise Http404("Numbers come as csv or json.")
    safe = "".join(letter if letter.isascii() and (letter.isalnum() or letter in "-_.") else "-" for letter in name)
    response["Content-Disposition"] = f'attachment; filename="{safe}-metrics.{form}"'
    return response


def metrics_csv(attempt: Attempt) -> str:
    """kind, step, key, value, unit, time: one line a number."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["kind", "step", "key", "value", "unit", "at"])
    for row in load_metrics(attempt):
        writer.writerow([row.kind, row.step, row.key, repr(row.value), define(row.key).unit, row.at.isoformat()])
    return text.getvalue()


def metrics_json(attempt: Attempt) -> bytes:
    """The numbers, and what each key means."""
    rows = load_metrics(attempt)
    keys = sorted({row.key for row in rows})
    return orjson.dumps(
        {
            "run": attempt.run.name,
            "attempt": attempt.number,
            "definitions": {
                key: {"label": known.label, "unit": known.unit, "meaning": known.meaning, "how": known.how}
                for key in keys
                for known in [define(key)]
            },
            "metrics": [
                {"kind": row.kind, "step": row.step, "key": row.key, "value": row.value, "at": row.at.isoformat()}
                for row in rows
            ],
        }
    )
