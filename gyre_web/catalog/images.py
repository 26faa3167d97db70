"""Images: what every host has or is making, with the log of each, and the wish to make one anew."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db import transaction
from django.db.models import Case, IntegerField, QuerySet, Value, When
from django.http import HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from environments.images.wishes import enqueue_build, rebuild_image
from environments.models import Image, Task
from gyre_web.accounts.access import require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.audit.services import record

MAX_SHOWN = 500
BUSY_FIRST = Case(
    When(state=Image.State.BUILDING, then=Value(0)),
    When(state=Image.State.FAILED, then=Value(1)),
    default=Value(2),
    output_field=IntegerField(),
)


def list_images() -> "QuerySet[Image]":
    """Those being made first, then failures; logs stay in the database."""
    return Image.objects.defer("log").order_by(BUSY_FIRST, "-last_used_at", "reference")[:MAX_SHOWN]


def tasks_of(image: Image) -> "QuerySet[Task]":
    """Tasks built from the same directory, or that give the name."""
    if image.context:
        return Task.objects.filter(directory=image.context.removesuffix("/environment"))[:20]
    return Task.objects.filter(settings__environment__docker_image=image.reference)[:20]


def is_fragment(request: HttpRequest) -> bool:
    return request.headers.get("HX-Request") == "true"


@require_role(User.Role.VIEWER)
@require_GET
def images(request: HttpRequest) -> HttpResponse:
    name = "catalog/_images.html" if is_fragment(request) else "catalog/images.html"
    return render(request, name, {"images": list_images()})


@require_role(User.Role.VIEWER)
@require_GET
def image(request: HttpRequest, image_id: UUID) -> HttpResponse:
    found = get_object_or_404(Image, pk=image_id)
    context: dict[str, Any] = {
        "image": found,
        "tasks": tasks_of(found),
        "may_rebuild": signed_in(request).has_role(User.Role.OPERATOR),
    }
    return render(request, "catalog/_image.html" if is_fragment(request) else "catalog/image.html", context)


@require_role(User.Role.OPERATOR)
@require_POST
def rebuild(request: HttpRequest, image_id: UUID) -> HttpResponse:
    found = get_object_or_404(Image, pk=image_id)
    with transaction.atomic():
        done = rebuild_image(found)
        if done:
            record(request, "image.rebuild", found)
            transaction.on_commit(lambda: enqueue_build(found))
    if done:
        messages.success(request, "It is built anew.")
    else:
        messages.warning(request, "It is being made already.")
    return redirect("catalog:image", image_id)
