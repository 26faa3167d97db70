"""Every page needs a signed-in person; the REST API authenticates by itself (token or session)."""

from collections.abc import Callable
from typing import Any

from django.contrib.auth.middleware import LoginRequiredMiddleware
from django.http import HttpRequest, HttpResponse, HttpResponseBase

API_PREFIX = "/api/"
API_PAGE = "/api/docs"


class SignInMiddleware(LoginRequiredMiddleware):
    """Django's, without /api/; a fragment asked for by htmx is sent to the sign-in page as a whole page."""

    def process_view(
        self, request: HttpRequest, view_func: Callable[..., Any], view_args: Any, view_kwargs: Any
    ) -> HttpResponseBase | None:
        if request.path.startswith(API_PREFIX) and request.path != API_PAGE:
            return None
        return super().process_view(request, view_func, view_args, view_kwargs)

    def handle_no_permission(  # type: ignore[override]  # the stub promises a redirect only
        self, request: HttpRequest, view_func: Callable[..., Any]
    ) -> HttpResponseBase:
        response = super().handle_no_permission(request, view_func)
        if request.headers.get("HX-Request") == "true" and response.has_header("Location"):
            return HttpResponse(status=204, headers={"HX-Redirect": response["Location"]})
        return response
