"""Addresses of data sets and exports."""

from django.urls import path

from gyre_web.exports import views

app_name = "exports"
urlpatterns = [
    path("exports", views.index, name="index"),
    path("exports/make", views.make, name="make"),
    path("exports/<uuid:pk>/download", views.download, name="download"),
    path("exports/<uuid:pk>/delete", views.delete, name="delete"),
]
