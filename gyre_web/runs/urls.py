"""Addresses of runs, groups and rollout tables."""

from django.urls import path

from gyre_web.runs import evaluation_views, form_views, rollout_views, run_views, views

app_name = "runs"
urlpatterns = [
    path("", views.run_list, name="list"),
    path("runs/new", form_views.new_run, name="new"),
    path("runs/new/check", form_views.check_form, name="check"),
    path("runs/new/toml", form_views.read_toml, name="read_toml"),
    path("runs/<uuid:run_id>", run_views.detail, name="detail"),
    path("runs/<uuid:run_id>/charts", run_views.chart_data, name="charts"),
    path("runs/<uuid:run_id>/metrics.<str:form>", evaluation_views.metrics_file, name="metrics"),
    path("evaluations", evaluation_views.compare, name="evaluations"),
    path("runs/<uuid:run_id>/steer", run_views.steer, name="steer"),
    path("runs/<uuid:run_id>/rollouts", rollout_views.rollouts, name="rollouts"),
    path("runs/<uuid:run_id>/filters", rollout_views.save_filter, name="save_filter"),
    path("filters/<uuid:pk>/delete", rollout_views.delete_filter, name="delete_filter"),
    path("groups/<uuid:group_id>", rollout_views.group, name="group"),
]
