from django.apps import AppConfig


class WatchConfig(AppConfig):
    name = "gyre_web.watch"
    label = "watch"
    default_auto_field = "django.db.models.BigAutoField"
