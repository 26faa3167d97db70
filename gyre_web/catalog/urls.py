"""Addresses of the catalog."""

from django.urls import path

from gyre_web.catalog import images, import_views, model_views, views

app_name = "catalog"
urlpatterns = [
    path("tasks", views.tasks, name="tasks"),
    path("tasks/import", import_views.import_tasks, name="import"),
    path("tasks/sets/<str:name>", views.taskset, name="taskset"),
    path("tasks/<uuid:task_id>", views.task, name="task"),
    path("models", model_views.models, name="models"),
    path("models/add", model_views.add_model, name="add_model"),
    path("models/<uuid:model_id>", model_views.model, name="model"),
    path("tasks/<uuid:task_id>/try", views.try_task, name="try"),
    path("images", images.images, name="images"),
    path("images/<uuid:image_id>", images.image, name="image"),
    path("images/<uuid:image_id>/rebuild", images.rebuild, name="rebuild_image"),
    path("harnesses", views.harnesses, name="harnesses"),
    path("harnesses/new", views.new_harness, name="new_harness"),
]
