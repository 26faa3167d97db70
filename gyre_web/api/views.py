"""A readable page of the REST interface, from its own OpenAPI document (no script from elsewhere)."""

from typing import Any

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_GET

from gyre_web.accounts.access import require_role
from gyre_web.accounts.models import User
from gyre_web.api.routes import api


@require_role(User.Role.VIEWER)
@require_GET
def docs(request: HttpRequest) -> HttpResponse:
    return render(request, "components/api_docs.html", {"operations": operations()})


def operations() -> list[dict[str, Any]]:
    """Every operation: method, path, summary, parameters and fields of the body."""
    schema = api.get_openapi_schema()
    parts = schema["components"]["schemas"]
    found = []
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            body = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema", {})
            found.append(
                {
                    "method": method.upper(),
                    "path": path,
                    "summary": operation.get("description") or operation.get("summary", ""),
                    "parameters": [p["name"] for p in operation.get("parameters", []) if p["in"] == "query"],
                    "body": list(parts.get(body.get("$ref", "").rsplit("/", 1)[-1], {}).get("properties", {})),
                    "answers": ", ".join(str(code) for code in operation["responses"]),
                }
            )
    return found
