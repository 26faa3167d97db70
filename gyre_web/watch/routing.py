"""Websocket addresses."""

from django.urls import path

from gyre_web.watch.consumers import LiveConsumer

websocket_urlpatterns = [path("live", LiveConsumer.as_asgi())]
