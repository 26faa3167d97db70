"""Addresses of REST and of its description."""

from django.urls import path

from gyre_web.api import views
from gyre_web.api.routes import api

urlpatterns = [
    path("api/docs", views.docs, name="api_docs"),
    path("api/", api.urls),
]
