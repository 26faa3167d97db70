"""The list of runs."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from gyre_web.accounts.access import has_role, require_role
from gyre_web.accounts.models import User
from gyre_web.pages import Pager
from gyre_web.runs.selectors import PAGE, SORTS, RunFilter, list_runs
from training.models import Attempt

COLUMNS = (
    ("state", "State", False),
    ("name", "Run", False),
    ("model", "Model", False),
    ("tasks", "Tasks", False),
    ("harness", "Harness", False),
    ("step", "Step", True),
    ("reward", "Reward", False),
    ("live", "Live", True),
    ("idle", "Idle", True),
    ("owner", "Owner", False),
    ("age", "Age", True),
)


@require_role(User.Role.VIEWER)
@require_GET
def run_list(request: HttpRequest) -> HttpResponse:
    wanted = RunFilter.from_query(request.GET)
    rows, total = list_runs(wanted)
    context = {
        "rows": rows,
        "wanted": wanted,
        "pager": Pager(page=wanted.page, size=PAGE, total=total),
        "columns": COLUMNS,
        "sorts": SORTS,
        "may_start": has_role(request.user, User.Role.OPERATOR),
    }
    if request.headers.get("HX-Request") == "true":
        return render(request, "runs/_list.html", context)
    context |= {
        "any_runs": total > 0 or bool(request.GET),
        "states": Attempt.State.choices,
        "owners": User.objects.filter(runs__isnull=False)
        .distinct()
        .order_by("username")
        .values_list("username", flat=True),
    }
    return render(request, "runs/list.html", context)
