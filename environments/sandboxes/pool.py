"""Sandboxes prepared before anybody asks for one: the container runs and waits for its order.

From:  docker.py, which notes every launch and claims what is there.
To:    Sandbox rows with purpose `warm` and a lease; any worker of this host may claim one.
Holds: at most settings.WARM_SANDBOXES of this process's making; for each form as many as it launched in the last
       WINDOW_S. What nobody wanted for that long is removed by whoever made it; what a dead worker left, its lease gives
       to the reaper. Several workers of a host share what is there and do not count each other's.
Never: delays a launch: what is not there is made by the launch itself.
"""

import contextlib
import logging
import threading
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from datetime import timedelta
from uuid import uuid4

from django.conf import settings
from django.db import InterfaceError, OperationalError, connection
from django.utils import timezone

from environments.models import Sandbox
from environments.sandboxes.container import Form
from environments.sandboxes.directory import directory_of, host_name
from environments.sandboxes.docker import DockerHandle, prepare
from environments.sandboxes.protocol import LEASE_S, Launch, SandboxError

WINDOW_S = 60.0
ROUND_S = 2.0
WARM_LEASE_S = 60.0

log = logging.getLogger(__name__)


class Pool:
    def __init__(self) -> None:
        self._launches: defaultdict[str, deque[float]] = defaultdict(deque)
        self._forms: dict[str, Form] = {}
        self._guard = threading.Lock()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.name = uuid4().hex
        """In the handle of what this pool made."""

    @contextlib.contextmanager
    def closed(self) -> Iterator[None]:
        """Prepare nothing meanwhile; what is there is claimed as ever."""
        self._is_closed = True
        try:
            yield
        finally:
            self._is_closed = False

    def claim(self, form: Form, launch: Launch) -> DockerHandle | None:
        """A prepared sandbox, from now on this launch's."""
        now = timezone.now()
        waiting = Sandbox.objects.filter(
            kind=Sandbox.Kind.DOCKER,
            purpose=Sandbox.Purpose.WARM,
            host=host_name(),
            stopped_at=None,
            lease_expires_at__gt=now + timedelta(seconds=5),
            handle__form=form.key,
        )
        for row in waiting.order_by("created_at")[:10]:
            if row.directory == str(directory_of(row.id)) and self._take(row, launch):
                handle = DockerHandle(row)
                if handle.is_alive():
                    return handle
                Sandbox.objects.filter(pk=row.pk).update(lease_expires_at=now, rollout=None, session=None)
        return None

    def _take(self, row: Sandbox, launch: Launch) -> bool:
        now = timezone.now()
        fields = {
            "purpose": launch.purpose,
            "rollout_id": launch.rollout_id,
            "session_id": launch.session_id,
            "created_at": now,
            "lease_expires_at": now + timedelta(seconds=LEASE_S),
        }
        if not Sandbox.objects.filter(pk=row.pk, purpose=Sandbox.Purpose.WARM, stopped_at=None).update(**fields):
            return False
        for name, value in fields.items():
            setattr(row, name, value)
        return True

    def note(self, form: Form) -> None:
        """Somebody launched one: others of the same form will follow."""
        if self._is_closed or settings.WARM_SANDBOXES <= 0 or form.egress or form.facts.uid is not None:
            return  # a proxy serves one sandbox, an image kept from a sandbox is used once
        with self._guard:
            self._launches[form.key].append(time.monotonic())
            self._forms[form.key] = form
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="warm sandboxes", daemon=True)
                self._thread.start()
        self._wake.set()

    def wanted(self) -> dict[str, int]:
        """How many of each form there should be, the busiest forms first, within the bound."""
        since, left = time.monotonic() - WINDOW_S, int(settings.WARM_SANDBOXES)
        with self._guard:
            for times in self._launches.values():
                while times and times[0] < since:
                    times.popleft()
            counts = {key: len(times) for key, times in self._launches.items()}
        found: dict[str, int] = {}
        for key in sorted(counts, key=lambda key: -counts[key]):
            found[key] = min(counts[key], left)
            left -= found[key]
        return found

    def balance(self) -> int:
        """Make what is wanted and is not there, remove what is not wanted. Returns how many are there."""
        total = 0
        for key, number in self.wanted().items():
            there = self._there(key)
            for row in there[number:]:
                self._remove(row)
            there = there[:number]
            expires_at = timezone.now() + timedelta(seconds=WARM_LEASE_S)
            Sandbox.objects.filter(pk__in=[row.pk for row in there], purpose=Sandbox.Purpose.WARM).update(
                lease_expires_at=expires_at
            )
            made = self._make(key) if len(there) < number else 0
            total += len(there) + made
            if not number and not there:
                self._forget(key)
        return total

    def _there(self, key: str) -> list[Sandbox]:
        found = Sandbox.objects.filter(
            kind=Sandbox.Kind.DOCKER,
            purpose=Sandbox.Purpose.WARM,
            host=host_name(),
            stopped_at=None,
            handle__form=key,
            handle__pool=self.name,
            lease_expires_at__gt=timezone.now(),
        )
        return [row for row in found.order_by("created_at") if row.directory == str(directory_of(row.id))]

    def _make(self, key: str) -> int:
        """One at a time: launches go before."""
        form = self._forms[key]
        row = create_warm_row(form, self.name)
        try:
            prepare(form, row)
        except SandboxError as error:
            log.warning("a warm sandbox cannot be made", extra={"error": str(error)})
            self._forget(key)  # the next launch says why, to whom it concerns
            return 0
        self._wake.set()
        return 1

    def _remove(self, row: Sandbox) -> None:
        """Unless somebody claimed it meanwhile."""
        now = timezone.now()
        unclaimed = Sandbox.objects.filter(pk=row.pk, purpose=Sandbox.Purpose.WARM, stopped_at=None)
        if unclaimed.update(stopped_at=now, lease_expires_at=now):
            with contextlib.suppress(SandboxError, OSError):  # the reaper tries again
                DockerHandle(row).remove()
                Sandbox.objects.filter(pk=row.pk).delete()

    def _forget(self, key: str) -> None:
        with self._guard:
            self._launches.pop(key, None)
            self._forms.pop(key, None)

    def _run(self) -> None:
        """Until nothing is wanted any more."""
        while True:
            self._wake.clear()
            try:
                self.balance()
            except (OperationalError, InterfaceError) as error:
                log.warning("warm sandboxes wait for the database", extra={"error": str(error)})
            finally:
                connection.close()
            with self._guard:
                if not self._launches:
                    self._thread = None
                    return
            self._wake.wait(ROUND_S)


def create_warm_row(form: Form, pool: str = "") -> Sandbox:
    """pool: name of the one that keeps its lease."""
    sandbox = uuid4()
    return Sandbox.objects.create(
        id=sandbox,
        kind=Sandbox.Kind.DOCKER,
        purpose=Sandbox.Purpose.WARM,
        image=form.facts.image,
        host=host_name(),
        directory=str(directory_of(sandbox)),
        handle={"pool": pool},
        lease_expires_at=timezone.now() + timedelta(seconds=WARM_LEASE_S),
    )


POOL = Pool()
