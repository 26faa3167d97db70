"""Deployment settings, all from the environment (gyre_web.env). A run's own settings are in training.config.

`manage.py up` sets DATABASE_URL, REDIS_URL and GYRE_SECRET_KEY for the processes it starts. Without it, give
the URLs, and one key to all web processes: each would otherwise sign sessions with a key of its own.
"""

import secrets
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

from gyre_web.env import env_bool, env_int, env_list, env_path, env_str

BASE_DIR = Path(__file__).resolve().parent.parent
DATA_DIR = env_path("GYRE_DATA", BASE_DIR / ".gyre")
"""Models, versions, checkpoints, generated tasks, sandboxes, embedded services' data."""

RUNTIME_DIR = env_path(
    "GYRE_RUNTIME", Path("/tmp") / f"gyre-{__import__('hashlib').sha256(str(DATA_DIR).encode()).hexdigest()[:8]}"
)
"""Short path for unix sockets (a socket path has at most 107 bytes)."""

DEBUG = env_bool("GYRE_DEBUG", False)
SECRET_KEY = env_str("GYRE_SECRET_KEY") or secrets.token_urlsafe(50)
"""Signs sessions. Not given: one for this process only, so that nothing is ever served under a known key."""
ALLOWED_HOSTS = env_list("GYRE_HOSTS", ["localhost", "127.0.0.1", "[::1]"])
CSRF_TRUSTED_ORIGINS = env_list("GYRE_ORIGINS", [])


def database_settings(url: str) -> dict[str, object]:
    """Django's settings for a URL like postgresql://user:password@host:5432/name or ...?host=/socket/dir."""
    if not url:
        return {"ENGINE": "django.db.backends.postgresql", "NAME": "gyre"}
    parts = urlsplit(url)
    if parts.scheme not in ("postgres", "postgresql"):
        raise ImproperlyConfigured(f"DATABASE_URL must begin with postgresql://, not {parts.scheme}://")
    query = dict(parse_qsl(parts.query))
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.lstrip("/")) or "gyre",
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": query.pop("host", "") or parts.hostname or "",
        "PORT": str(parts.port or query.pop("port", "")),
        "CONN_HEALTH_CHECKS": True,
        "CONN_MAX_AGE": 0,
        "OPTIONS": query,
    }


def package_statics() -> list[tuple[str, Path]]:
    """plotly.js, from the plotly package, as `static/plotly/plotly.min.js` (not imported: that takes a second)."""
    spec = find_spec("plotly")
    if spec is None or spec.origin is None:
        return []
    return [("plotly", Path(spec.origin).parent / "package_data")]


DATABASE_URL = env_str("DATABASE_URL")
DATABASES = {"default": database_settings(DATABASE_URL)}

REDIS_URL = env_str("REDIS_URL", "redis://127.0.0.1:6379/0")
"""Valkey: redis://host:port/n or unix:///path.sock?db=n. Celery broker, channel layer, live logs."""


def channel_layers(url: str) -> dict[str, object]:
    return {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [url], "prefix": "gyre"},
        }
    }


def celery_broker_url(url: str) -> str:
    """Celery's spelling of a unix socket URL."""
    return url.replace("unix://", "redis+socket://", 1).replace("?db=", "?virtual_host=")


CHANNEL_LAYERS = channel_layers(REDIS_URL)
CELERY_BROKER_URL = celery_broker_url(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = False
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_DISABLE_PREFETCH = True
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_TASK_ROUTES = {"environments.*": {"queue": "rollouts"}, "training.*": {"queue": "cells"}}

TENSORBOARD_DIR = env_str("GYRE_TENSORBOARD")
"""Where TensorBoard event files go, beside the rows; empty: none are written."""

GATEWAY_SOCKET_DIR = RUNTIME_DIR / "gateway"
"""Directory bound into sandboxes; holds only gateway sockets, `gateway.sock` among them."""
WARM_SANDBOXES = env_int("GYRE_WARM_SANDBOXES", 4)
"""Most docker sandboxes that a worker keeps prepared beyond those in use; 0: none."""
IMAGE_STAND_INS = env_list("GYRE_IMAGE_STAND_INS", [])
"""Names of images (debian, ubuntu, python) for which the local base image stands in where no registry has them. A task
is then not what its author meant: off unless named, and shown on everything that was built so."""
IMAGE_BUILD_NETWORK = env_str("GYRE_IMAGE_BUILD_NETWORK")
"""Network of a build's RUN steps, as the engine names it (`none`, `host`, ...); empty: the engine's default."""
EGRESS_ANY = env_bool("GYRE_EGRESS_ANY", False)
"""Tasks that ask for the whole internet (allow_internet without allowed_hosts) get all of it that is public."""
EGRESS_PRIVATE = env_list("GYRE_EGRESS_PRIVATE", [])
"""Private addresses (10.1.2.0/24, ...) that names in allowed_hosts may lead to; without it none, whatever a task says."""
GATEWAY_PORT = env_int("GYRE_GATEWAY_PORT", 0)
"""TCP port for clients outside sandboxes; 0: none."""

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.humanize",
    "django.contrib.staticfiles",
    "channels",
    "django_htmx",
    "django_filters",
    "django_tables2",
    "environments",
    "training",
    "gyre_web",
    "gyre_web.accounts",
    "gyre_web.audit",
    "gyre_web.runs",
    "gyre_web.watch",
    "gyre_web.review",
    "gyre_web.catalog",
    "gyre_web.cluster",
    "gyre_web.api",
]
AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "accounts:sign_in"
LOGIN_REDIRECT_URL = "runs:list"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "servestatic.middleware.ServeStaticMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "gyre_web.audit.middleware.RequestIdMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "gyre_web.accounts.middleware.SignInMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "csp.middleware.CSPMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "gyre_web.urls"
ASGI_APPLICATION = "gyre_web.asgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": False,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ],
            "loaders": ["django.template.loaders.filesystem.Loader", "django.template.loaders.app_directories.Loader"],
        },
    }
]
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "img-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "style-src": ["'self'"],
        "script-src": ["'self'"],
        "object-src": ["'none'"],
        "frame-ancestors": ["'none'"],
        "base-uri": ["'none'"],
        "form-action": ["'self'"],
    }
}

STATIC_URL = "static/"
STATICFILES_DIRS: list[Path | tuple[str, Path]] = [BASE_DIR / "static", *package_statics()]
STATIC_ROOT = DATA_DIR / "static"
SERVESTATIC_USE_FINDERS = True
SERVESTATIC_AUTOREFRESH = DEBUG
SESSION_COOKIE_SAMESITE = "Lax"
SECURE_REFERRER_POLICY = "same-origin"
LANGUAGE_CODE = "en"
USE_TZ = True
TIME_ZONE = "UTC"
USE_I18N = False
DATA_UPLOAD_MAX_MEMORY_SIZE = 10 * 1024 * 1024
UPLOAD_MB = env_int("GYRE_UPLOAD_MB", 512)
"""Largest archive of tasks that the browser and REST take; `manage.py tasks import` has its own bounds."""

LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"plain": {"format": "%(asctime)s %(levelname)s %(name)s %(message)s"}},
    "handlers": {"stderr": {"class": "logging.StreamHandler", "formatter": "plain"}},
    "root": {"handlers": ["stderr"], "level": env_str("GYRE_LOG_LEVEL", "INFO")},
    "loggers": {"httpx": {"level": "WARNING"}, "django.channels.server": {"level": "WARNING"}},
}
