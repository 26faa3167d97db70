"""The web process: Django's pages and the live websocket, which only this site's own pages may open."""

import os
from typing import cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gyre_web.settings")

from django.core.asgi import get_asgi_application

http_application = get_asgi_application()
"""First of all: it loads the apps that the imports below need."""

from channels.auth import AuthMiddlewareStack  # noqa: E402
from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from channels.security.websocket import AllowedHostsOriginValidator  # noqa: E402
from django.conf import settings  # noqa: E402

from gyre_web.body_limit import Application, BodyLimit  # noqa: E402
from gyre_web.watch.routing import websocket_urlpatterns  # noqa: E402

application = ProtocolTypeRouter(
    {
        "http": BodyLimit(cast("Application", http_application), upload_bytes=settings.UPLOAD_MB << 20),
        "websocket": AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns))),
    }
)
