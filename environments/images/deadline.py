"""A client of the container engine for one build, whose connection is cut when the build's time is up.

From:  build.py.
To:    the engine, which ends a build and removes its containers when whoever asked for it is gone.
Holds: also a step that says nothing for hours ends in time. The cut looks like an end or an error of the stream;
       `is_over` says that it was ours.
"""

import threading
from types import TracebackType
from typing import Any

import docker

from environments.sandboxes.engine_client import new_client


class Deadline:
    """Use as a context: `with Deadline(60.0) as deadline: deadline.client.build(...)`."""

    def __init__(self, timeout_s: float) -> None:
        self.client: docker.APIClient = new_client()
        self.client.hooks["response"].append(self._hold)
        self.is_over = False
        self._streams: list[Any] = []
        self._guard = threading.Lock()
        self._timer = threading.Timer(timeout_s, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> "Deadline":
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        with self._guard:
            for stream in self._streams:
                stream.close()
        self.client.close()

    def _hold(self, response: Any, *_: Any, **__: Any) -> None:
        with self._guard:
            self._streams.append(response)
        if self.is_over:
            self._cut()

    def _cut(self) -> None:
        self.is_over = True
        with self._guard:
            for stream in self._streams:
                stream.raw.shutdown()  # wakes the thread that reads; closing from here would not
