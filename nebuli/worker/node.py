"""The fragments of one worker, by the ids that it gave them."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING

from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.worker.logs import Logs
from nebuli.worker.runner import FragmentRunner
from nebuli.worker.status import FragmentState

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.worker.logs import LogLine
    from nebuli.worker.provider import Provider
    from nebuli.worker.status import FragmentStatus
    from placement.plan import Fragment

__all__ = ["BusyFragment", "FragmentStarted", "Node", "UnknownFragment"]

_LAST_WORDS_S = 1.0


class UnknownFragment(Exception):
    """No fragment has this id."""


class FragmentStarted(Exception):
    """The fragment was started before, or has ended."""


class BusyFragment(Exception):
    """The fragment has not ended, and can be taken away only then."""


class Node:
    """What a worker has been given to run. To be used on the worker's loop.

    ``max_state_bytes`` is what the state of an operator may hold whose plan says nothing else.
    """

    def __init__(self, provider: Provider, *, max_state_bytes: int = DEFAULT_MAX_STATE_BYTES) -> None:
        self._provider = provider
        self._max_state_bytes = max_state_bytes
        self._runners: dict[str, FragmentRunner] = {}
        self._numbers = itertools.count(1)
        self.logs = Logs(self._owner)

    def register(self, fragment: Fragment) -> str:
        """Take a fragment, and give it an id that is its own as long as this worker lives."""
        id_ = str(next(self._numbers))
        self._runners[id_] = FragmentRunner(
            id_, fragment, lambda: self.logs.of_thread(id_), max_state_bytes=self._max_state_bytes
        )
        return id_

    def start(self, id_: str) -> None:
        """Start a fragment, once."""
        runner = self._runner(id_)
        if runner.status.state is not FragmentState.REGISTERED:
            raise FragmentStarted(f"fragment {runner.fragment.id} is {runner.status.state} already")
        runner.start(self._provider)

    def stop(self, id_: str) -> None:
        """Ask a fragment to end; harmless when it has."""
        self._runner(id_).stop()

    async def unregister(self, id_: str) -> None:
        """Forget a fragment that does not run."""
        runner = self._runner(id_)
        if runner.status.state is FragmentState.RUNNING:
            raise BusyFragment(f"fragment {runner.fragment.id} is running: stop it first")
        if not await asyncio.to_thread(runner.join, _LAST_WORDS_S):
            raise BusyFragment(f"fragment {runner.fragment.id} is telling its reader of its end: try again")
        self._runners.pop(id_, None)

    def logged(self, id_: str, *, follow: bool) -> AsyncIterator[LogLine]:
        """What was logged about a fragment, or about all if ``id_`` is empty."""
        if id_:
            self._runner(id_)
        return self.logs.lines(id_, follow=follow)

    def _owner(self, text: str) -> str:
        """The fragment that a line of the event loop is about: it names one of its channels."""
        owners = (id_ for id_, runner in list(self._runners.items()) if runner.is_about(text))
        return next(owners, "")

    def statuses(self) -> list[FragmentStatus]:
        """All fragments, in the order in which they came."""
        return [runner.status for runner in self._runners.values()]

    async def shutdown(self, timeout_s: float) -> bool:
        """Stop everything; False if a fragment is still busy after that time."""
        for runner in self._runners.values():
            runner.stop()
        ends = (asyncio.to_thread(runner.join, timeout_s) for runner in self._runners.values())
        return all(await asyncio.gather(*ends))

    def _runner(self, id_: str) -> FragmentRunner:
        try:
            return self._runners[id_]
        except KeyError:
            raise UnknownFragment(f"no fragment {id_} here; there are {len(self._runners)}") from None
