"""Address of the cluster page."""

from django.urls import path

from gyre_web.cluster import views

app_name = "cluster"
urlpatterns = [path("cluster", views.index, name="index")]
