"""Pages of runs."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from gyre_web.accounts.access import require_role


@require_role("viewer")
def run_list(request: HttpRequest) -> HttpResponse:
    return render(request, "runs/list.html")
