from django.apps import AppConfig


class GyreWebConfig(AppConfig):
    name = "gyre_web"
    default_auto_field = "django.db.models.BigAutoField"
