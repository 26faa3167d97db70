"""Have an image made by a worker, because a person wants it before, or again.

From:  the page of an image, REST, `manage.py images`.
To:    a Celery job (environments.jobs.make_image); the row says how it goes.
"""

import threading

from environments.images.ensure import ensure_image, rebuild
from environments.images.errors import ImageUnavailable
from environments.models import Image


def rebuild_image(image: Image) -> bool:
    """False while it is being made."""
    return rebuild(image)


def enqueue_build(image: Image) -> None:
    """Asking twice is harmless: the row's lease decides."""
    from environments.jobs import make_image

    make_image.delay(str(image.pk))


def make(image: Image, stop: threading.Event) -> None:
    """Until it is there or has failed; both are in its row."""
    try:
        ensure_image(image, stop=stop)
    except (ImageUnavailable, InterruptedError):
        return
