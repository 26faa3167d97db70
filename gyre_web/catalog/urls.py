"""Addresses of the catalog."""

from django.urls import path

from gyre_web.catalog import views

app_name = "catalog"
urlpatterns = [
    path("tasks", views.tasks, name="tasks"),
    path("tasks/<uuid:task_id>", views.task, name="task"),
    path("models", views.models, name="models"),
    path("harnesses", views.harnesses, name="harnesses"),
    path("harnesses/new", views.new_harness, name="new_harness"),
]
