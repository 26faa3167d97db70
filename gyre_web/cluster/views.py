"""What runs where."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.utils import timezone
from django.views.decorators.http import require_GET

from gyre_web.accounts.access import require_role
from gyre_web.accounts.models import User
from gyre_web.cluster import selectors


@require_role(User.Role.VIEWER)
@require_GET
def index(request: HttpRequest) -> HttpResponse:
    context = {
        "now": timezone.now(),
        "leader": selectors.load_leader(),
        "cells": selectors.load_cells(),
        "engines": selectors.load_engines(),
        "workers": selectors.load_workers(),
        "gateways": selectors.load_gateways(),
        "calls": selectors.load_calls(),
        "sandboxes": selectors.load_sandboxes(),
        "num_sandboxes": selectors.count_sandboxes(),
        "queues": selectors.load_queues(),
        "holds": selectors.load_holds(),
    }
    fragment = request.headers.get("HX-Request") == "true"
    return render(request, "cluster/_parts.html" if fragment else "cluster/index.html", context)
