"""The page on which a task set is imported from an archive.

Holds: who may not import is refused before the archive is read; a name of 110 characters and a bounded archive are all
       that is taken. The answer to a script (`Accept: application/json`) is JSON, so that it can show progress.
"""

from pathlib import Path
from typing import Any

from django import forms
from django.conf import settings
from django.contrib import messages
from django.core.files.uploadhandler import TemporaryFileUploadHandler
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.csrf import csrf_exempt, csrf_protect
from django.views.decorators.http import require_http_methods

from environments.tasksets import InvalidImport, Problem
from environments.tasksets.archives import SUFFIXES
from environments.tasksets.importing import NAME
from gyre_web.accounts.access import require_role, signed_in
from gyre_web.accounts.models import User
from gyre_web.catalog.uploads import import_upload

MAX_SHOWN = 200


class ImportForm(forms.Form):
    name = forms.RegexField(
        regex=f"^{NAME.pattern}$",
        max_length=100,
        error_messages={"invalid": "Use letters, digits, - and _; versions are added by themselves."},
    )
    description = forms.CharField(max_length=500, required=False)
    archive = forms.FileField()


@csrf_exempt  # checked by the inner view, once the handler that keeps the archive out of memory is in place
@require_role(User.Role.OPERATOR)
@require_http_methods(["GET", "POST"])
def import_tasks(request: HttpRequest) -> HttpResponse:
    request.upload_handlers = [TemporaryFileUploadHandler(request)]
    return _import(request)


@csrf_protect
def _import(request: HttpRequest) -> HttpResponse:
    if request.method == "GET":
        return _answer(request, ImportForm(initial={"name": request.GET.get("name", "")}), [])
    form = ImportForm(request.POST, request.FILES)
    if not form.is_valid():
        return _answer(request, form, [_of_form(name, texts) for name, texts in form.errors.items()])
    archive = form.cleaned_data["archive"]
    try:
        imported = import_upload(
            path=Path(archive.temporary_file_path()),
            source_name=archive.name,
            name=form.cleaned_data["name"],
            description=form.cleaned_data["description"],
            user=signed_in(request),
        )
    except InvalidImport as error:
        return _answer(request, form, error.problems)
    taskset = imported.taskset
    text = f"{taskset.name}: {taskset.tasks.count()} tasks."
    messages.success(request, text if imported.is_new else f"These contents were there already, as {taskset.name}.")
    address = reverse("catalog:taskset", args=[taskset.name])
    return JsonResponse({"address": address}) if _wants_json(request) else redirect(address)


def _of_form(name: str, texts: Any) -> Problem:
    return Problem(file="", field=name, message=" ".join(str(text) for text in texts), rule="form")


def _answer(request: HttpRequest, form: ImportForm, problems: list[Problem]) -> HttpResponse:
    if _wants_json(request) and request.method == "POST":
        shown = [vars(problem) for problem in problems[:MAX_SHOWN]]
        return JsonResponse({"problems": shown, "number": len(problems)}, status=422)
    context = {
        "form": form,
        "problems": problems[:MAX_SHOWN],
        "num_problems": len(problems),
        "suffixes": ",".join(SUFFIXES),
        "limit_mib": settings.UPLOAD_MB,
    }
    return render(request, "catalog/import.html", context, status=422 if problems else 200)


def _wants_json(request: HttpRequest) -> bool:
    return request.headers.get("Accept") == "application/json"
