"""What is said while an image is made, as the end of a text in its row, written a few times a second at most.

From:  base.py and build.py, line by line, in the thread that makes the image.
To:    Image.log; the same write renews the lease.
Holds: a builder that lost its lease learns it at its next line.
"""

import threading
import time
from datetime import timedelta
from uuid import UUID

from django.db import connection
from django.utils import timezone

from environments.models import Image

LEASE_S = 60.0
WRITE_S = 0.5
MAX_LOG_CHARS = 256 * 1024
MAX_LINE_CHARS = 4000


class ImageLost(Exception):
    """Another builder has it now."""


class Progress:
    """Of one making. A thread of its own keeps the lease while the engine says nothing for minutes."""

    def __init__(self, image: UUID, owner: str) -> None:
        self.image = image
        self.owner = owner
        self.text = ""
        self.written_at = 0.0
        self.is_lost = False
        self.is_over = threading.Event()
        self._guard = threading.Lock()
        self._keeper = threading.Thread(target=self._keep, name="image-lease", daemon=True)
        self._keeper.start()

    def say(self, line: str) -> None:
        """Raises ImageLost."""
        with self._guard:
            self.text = f"{self.text}{line.rstrip()[:MAX_LINE_CHARS]}\n"[-MAX_LOG_CHARS:].replace("\0", "\ufffd")
        if self.is_lost:
            raise ImageLost
        if time.monotonic() - self.written_at >= WRITE_S:
            self.write()

    def write(self) -> None:
        self.written_at = time.monotonic()
        expires_at = timezone.now() + timedelta(seconds=LEASE_S)
        held = Image.objects.filter(pk=self.image, lease_owner=self.owner, state=Image.State.BUILDING)
        self.is_lost = not held.update(log=self.text, lease_expires_at=expires_at)

    def close(self) -> None:
        self.is_over.set()
        self._keeper.join()

    def _keep(self) -> None:
        while not self.is_over.wait(LEASE_S / 6):
            self.write()
            connection.close()
