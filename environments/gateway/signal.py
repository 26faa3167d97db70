"""Wake everyone who waits, as often as something changes."""

import asyncio


class Signal:
    def __init__(self) -> None:
        self._waiters: set[asyncio.Future[None]] = set()

    def fire(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()

    async def wait(self, timeout_s: float | None = None) -> bool:
        """True when fired, False after `timeout_s`."""
        loop = asyncio.get_running_loop()
        waiter: asyncio.Future[None] = loop.create_future()
        self._waiters.add(waiter)
        handle = loop.call_later(timeout_s, _expire, waiter) if timeout_s is not None else None
        try:
            await waiter
            return True
        except TimeoutError:
            return False
        finally:
            self._waiters.discard(waiter)
            if handle:
                handle.cancel()


def _expire(waiter: "asyncio.Future[None]") -> None:
    if not waiter.done():
        waiter.set_exception(TimeoutError())
