"""Who did what."""

from django.db.models import Q
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from gyre_web.accounts.access import require_role
from gyre_web.accounts.models import User
from gyre_web.audit.models import AuditEntry
from gyre_web.pages import Pager, page_number

PAGE = 100


@require_role(User.Role.OPERATOR)
@require_GET
def entries(request: HttpRequest) -> HttpResponse:
    query = request.GET
    found = AuditEntry.objects.all()
    for name in ("user_name", "action", "object_type", "object_id", "request_id"):
        if query.get(name):
            found = found.filter(**{name: query[name]})
    text = query.get("q", "").strip()
    if text:
        found = found.filter(Q(reason__icontains=text) | Q(object_id__icontains=text) | Q(action__icontains=text))
    page, total = page_number(query.get("page", "1")), found.count()
    context = {
        "entries": found[(page - 1) * PAGE : page * PAGE],
        "pager": Pager(page=page, size=PAGE, total=total),
        "chosen": query,
        "people": AuditEntry.objects.order_by("user_name").values_list("user_name", flat=True).distinct(),
        "actions": AuditEntry.objects.order_by("action").values_list("action", flat=True).distinct(),
        "types": AuditEntry.objects.order_by("object_type").values_list("object_type", flat=True).distinct(),
    }
    fragment = request.headers.get("HX-Request") == "true"
    return render(request, "audit/_entries.html" if fragment else "audit/list.html", context)
