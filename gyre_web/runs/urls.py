"""Addresses of runs, groups and rollout tables."""

from django.urls import path

from gyre_web.runs import views

app_name = "runs"
urlpatterns = [path("", views.run_list, name="list")]
