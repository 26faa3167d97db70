"""Give each request an id; audit entries, the answer's header and log lines carry it."""

import re
import uuid
from collections.abc import Callable
from contextvars import ContextVar

from django.http import HttpRequest
from django.http.response import HttpResponseBase

HEADER = "X-Request-Id"
ACCEPTED = re.compile(r"[A-Za-z0-9._-]{8,40}\Z")
current_request_id: ContextVar[str] = ContextVar("current_request_id", default="")


class RequestIdMiddleware:
    """Take a well-formed id from the proxy before us, else make one."""

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponseBase]) -> None:
        self.get_response = get_response

    def __call__(self, request: HttpRequest) -> HttpResponseBase:
        given = request.headers.get(HEADER, "")
        request_id = given if ACCEPTED.match(given) else uuid.uuid4().hex
        token = current_request_id.set(request_id)
        try:
            response = self.get_response(request)
        finally:
            current_request_id.reset(token)
        response[HEADER] = request_id
        return response
