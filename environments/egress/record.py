"""What a sandbox asked of the network, as rows, and as a flag where it asked for more than it may.

From:  proxy.py, from its threads.
To:    EgressRequest rows (at most MAX_ROWS a rollout), Rollout.flags through environments.life.
Never: stops a request because the database is away; what could not be written is logged and counted.
"""

import logging
import threading
import time
from collections import Counter
from datetime import timedelta
from uuid import UUID

from django.db import Error, connection
from django.utils import timezone

from environments.egress.proxy import Asked
from environments.models import EgressRequest
from environments.work_product import Flag

MAX_ROWS = 2000
MAX_EVIDENCE = 10

logger = logging.getLogger(__name__)


class Recorder:
    def __init__(self, rollout: UUID) -> None:
        self.rollout = rollout
        self.dropped = 0
        self._guard = threading.Lock()
        self._rows = EgressRequest.objects.filter(rollout_id=rollout).count()

    def __call__(self, asked: Asked, over: bool) -> None:
        try:
            self._write(asked, over)
        except Error as error:
            self.dropped += 1
            logger.warning("a request of a sandbox is not recorded", extra={"error": str(error)})
        finally:
            connection.close()

    def _write(self, asked: Asked, over: bool) -> None:
        lasted = time.monotonic() - asked.started_at
        fields = {
            "verdict": asked.verdict,
            "reason": asked.reason,
            "sent_bytes": asked.sent_bytes,
            "received_bytes": asked.received_bytes,
            "duration_s": lasted if over else None,
        }
        if asked.row is not None:
            EgressRequest.objects.filter(pk=asked.row).update(**fields)
        elif self._has_room():
            asked.row = EgressRequest.objects.create(
                rollout_id=self.rollout,
                at=timezone.now() - timedelta(seconds=lasted),
                method=asked.method.replace("\0", ""),
                host=asked.host.replace("\0", ""),
                port=asked.port,
                **fields,
            ).pk

    def _has_room(self) -> bool:
        with self._guard:
            self._rows += 1
            self.dropped += self._rows > MAX_ROWS
            return self._rows <= MAX_ROWS


def find_network_flags(rollout: UUID) -> list[Flag]:
    """It tried to reach what it may not, with what and how often."""
    denied = EgressRequest.objects.filter(rollout_id=rollout, verdict=EgressRequest.Verdict.DENIED)
    tried = Counter(f"{host}:{port} ({reason})" for host, port, reason in denied.values_list("host", "port", "reason"))
    if not tried:
        return []
    named = [f"{what} x {number}" if number > 1 else what for what, number in tried.most_common(MAX_EVIDENCE)]
    more = f", and {len(tried) - MAX_EVIDENCE} more" if len(tried) > MAX_EVIDENCE else ""
    return [Flag(kind="network_tried", evidence=", ".join(named) + more)]
