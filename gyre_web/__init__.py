"""People: pages, REST, websockets, and the commands that set everything up. May import the other two rooms."""

from gyre_web.celery import app as celery_app

__all__ = ["celery_app"]
