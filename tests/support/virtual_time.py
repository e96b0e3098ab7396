"""An event loop in virtual time: it never waits, and time passes when there is nothing to do."""

from __future__ import annotations

import selectors
from asyncio.selector_events import BaseSelectorEventLoop

_EPOCH_S = 1_700_000_000.0


class VirtualLoop(BaseSelectorEventLoop):
    """Of one thread, without the system: who registers a descriptor is told of it by `ready`."""

    def __init__(self) -> None:
        self.now = 0.0
        self.ready: set[int] = set()
        """The descriptors that can be read."""
        super().__init__(_Selector(self))

    def time(self) -> float:
        """Virtual seconds."""
        return self.now

    def _make_self_pipe(self) -> None:
        """Nobody has to be woken: there is one thread."""

    def _close_self_pipe(self) -> None:
        """As above."""

    def _write_to_self(self) -> None:
        """As above."""


class _Selector(selectors._BaseSelectorImpl):  # type: ignore[name-defined] # what all kinds of selectors share
    def __init__(self, loop: VirtualLoop) -> None:
        super().__init__()
        self._loop = loop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """What can be read; without that, the time of the wait is over at once."""
        found = [
            (key, selectors.EVENT_READ)
            for number, key in sorted(self._fd_to_key.items())
            if number in self._loop.ready
        ]
        if not found:
            assert timeout is not None, "nothing will ever happen any more"
            self._loop.now += timeout
        return found


class VirtualTime:
    """In the place of the module `time`, for what runs on such a loop."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic(self) -> float:
        """The loop's time."""
        return self._loop.now

    def time(self) -> float:
        """Seconds since 1970, as it were."""
        return _EPOCH_S + self._loop.now

    def time_ns(self) -> int:
        """The same in nanoseconds."""
        return round(self.time() * 1e9)

    def sleep(self, seconds: float) -> None:
        """Who blocks a thread holds up nobody else."""
