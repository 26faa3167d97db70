"""Every page's address. Each part owns its own urls module."""

from django.urls import URLPattern, URLResolver, include, path

urlpatterns: list[URLPattern | URLResolver] = [
    path("", include("gyre_web.accounts.urls")),
    path("", include("gyre_web.runs.urls")),
    path("", include("gyre_web.watch.urls")),
    path("", include("gyre_web.review.urls")),
    path("", include("gyre_web.catalog.urls")),
    path("", include("gyre_web.exports.urls")),
    path("", include("gyre_web.cluster.urls")),
    path("", include("gyre_web.audit.urls")),
    path("", include("gyre_web.api.urls")),
]
handler403 = "gyre_web.accounts.views.forbidden"
handler404 = "gyre_web.accounts.views.not_found"
handler500 = "gyre_web.accounts.views.failed"
