"""Threads for the disk's jobs, in virtual time: several run at once, and are through in any order."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import Future
from typing import TYPE_CHECKING

from .loop import ProcessLoop

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.support.simulated_files import SimulatedFiles


class Disk:
    """How fast jobs are: each waits, does what it does at once, and then takes a while until it is known."""

    def __init__(self, files: SimulatedFiles) -> None:
        self.files = files
        self.stands_until = 0.0
        self.slowness_s = 0.0

    def pool(self, threads: int, prefix: str) -> Threads:
        """In the place of `ThreadPoolExecutor`."""
        loop = asyncio.get_running_loop()
        assert isinstance(loop, ProcessLoop)
        return Threads(self, loop, threads)


class Threads:
    """A pool of threads of one process."""

    def __init__(self, disk: Disk, loop: ProcessLoop, threads: int) -> None:
        self._disk = disk
        self._loop = loop
        self._free = threads
        self._queue: deque[tuple[Callable[[], None], Future[None]]] = deque()
        self._open = 0

    def submit(self, work: Callable[[], None]) -> Future[None]:
        """Run ``work`` at some time."""
        future: Future[None] = Future()
        self._queue.append((work, future))
        self._open += 1
        self._begin()
        return future

    def shutdown(self) -> None:
        """A real one would block the loop until all is done."""
        if self._open:
            self._loop.room.problems.append(f"{self._loop.name} waits for {self._open} jobs of the disk")

    def _begin(self) -> None:
        while self._free and self._queue:
            self._free -= 1
            work, future = self._queue.popleft()
            self._later(lambda work=work, future=future: self._run(work, future))  # type: ignore[misc]

    def _later(self, action: Callable[[], None]) -> None:
        room, disk = self._loop.room, self._disk
        seconds = room.random.choice([0.0, 1e-4, 1e-3, disk.slowness_s]) * room.random.random()
        room.at(max(room.now + seconds, disk.stands_until), action)

    def _run(self, work: Callable[[], None], future: Future[None]) -> None:
        if not self._loop.alive:
            return
        error: Exception | None = None
        try:
            work()
        except Exception as raised:  # noqa: BLE001 - as a thread's pool does; a `Crash` is none
            error = raised
        self._later(lambda: self._done(future, error))

    def _done(self, future: Future[None], error: Exception | None) -> None:
        if not self._loop.alive:
            return
        self._open -= 1
        self._free += 1
        if error is None:
            future.set_result(None)
        else:
            future.set_exception(error)
        self._begin()
