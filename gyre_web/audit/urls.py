"""Address of the audit page."""

from django.urls import path

from gyre_web.audit import views

app_name = "audit"
urlpatterns = [path("audit", views.entries, name="list")]
