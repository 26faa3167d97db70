"""Every page's address. Each part owns its own urls module."""

from importlib import import_module

from django.urls import URLPattern, URLResolver, include, path

PARTS = ("accounts", "audit", "runs", "catalog", "cluster", "api", "watch", "review")


def included(part: str) -> list[URLResolver]:
    """A part's addresses; nothing while it is not written."""
    try:
        return [path("", include(import_module(f"gyre_web.{part}.urls")))]
    except ImportError:
        return []


urlpatterns: list[URLPattern | URLResolver] = [resolver for part in PARTS for resolver in included(part)]
handler403 = "gyre_web.accounts.views.forbidden"
handler404 = "gyre_web.accounts.views.not_found"
handler500 = "gyre_web.accounts.views.failed"
