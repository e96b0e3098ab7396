"""Who writes down what a staged channel promises: one thing after the other, on another thread than the core's."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from netchannel.errors import NetChannelError

from .disk import TRIM_S
from .link import Job, Worker, log
from .states import ReceiverState

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.storage import SealedAttempt, StagingStore

    from .groups import StagedChannel
    from .timers import Timer

SPARE_S = 30.0
"""A file that is kept to be written again, and was not in this time, is deleted."""


class Keeper(Worker):
    """Commits, deletes, and notes what the consumer has acknowledged; closes the files when the channel is over."""

    def __init__(self, owner: StagedChannel, store: StagingStore) -> None:
        self._owner = owner
        self._store = store
        self._steps: deque[Callable[[], Job | None]] = deque()
        self._busy = False
        self._resting = False  # acknowledgements were noted a moment ago
        self._leaving = False
        self._ageing: Timer | None = None
        self.settled = False

    def do(self, step: Callable[[], Job | None]) -> None:
        """When its turn comes, ``step`` decides what there is to do."""
        self._steps.append(step)
        self.request()

    def request(self) -> None:
        """There may be something to do."""
        if not (self._busy or self.settled):
            self._owner.core.request(self)

    def leave(self) -> None:
        """The channel is over: close the files, once all else is done."""
        self._leaving = True
        self.request()

    def remove(self, attempts: list[SealedAttempt]) -> None:
        """Delete files of attempts."""
        self.do(lambda: _Remove(self, self._store, attempts))

    def begin(self) -> Job | None:
        if self._busy or self.settled:
            return None
        job = self._next()
        self._busy = job is not None
        return job

    def _next(self) -> Job | None:
        while self._steps:
            if (job := self._steps.popleft()()) is not None:
                return job
        owner = self._owner
        if self._leaving or owner.finished:
            return None if owner.busy else _Leave(self, owner, self._store)
        if owner.acknowledged > self._store.acknowledged and not self._resting:
            self._resting = True
            return _Note(self, self._store, owner.acknowledged)
        return None

    def ended(self, now: float) -> None:
        """The job is done."""
        self._busy = False
        if self._ageing is None and self._store.spares.bytes:
            self._ageing = self._owner.core.timers.at(now + SPARE_S, self._age)
        self.request()

    def _age(self, now: float) -> None:
        self._ageing = None
        self.do(lambda: _Age(self, self._store))

    def left(self, now: float) -> None:
        """The files are closed; what was asked for meanwhile is answered all the same."""
        self.settled = True
        if self._ageing is not None:
            self._ageing.cancel()
        self._owner.settled(now)
        while self._steps:
            self._steps.popleft()()

    def noted(self, now: float, *, freed: bool) -> None:
        """Not again for a moment. Commits that wait for room are asked for again, if there is some."""
        core = self._owner.core
        if freed:
            core.announce(self._owner.channel.id)
        core.timers.at(now + TRIM_S, self._rested)
        self.ended(now)

    def _rested(self, now: float) -> None:
        self._resting = False
        self.request()


class _Note(Job):
    def __init__(self, keeper: Keeper, store: StagingStore, upto: int) -> None:
        self._keeper = keeper
        self._store = store
        self._upto = upto
        self._kept = len(store.state.parts)

    def run(self) -> None:
        self._store.acknowledge(self._upto)

    def done(self, now: float) -> None:
        self._keeper.noted(now, freed=len(self._store.state.parts) < self._kept)


class _Remove(Job):
    def __init__(self, keeper: Keeper, store: StagingStore, attempts: list[SealedAttempt]) -> None:
        self._keeper = keeper
        self._store = store
        self._attempts = attempts

    def run(self) -> None:
        self._store.remove(self._attempts, durably=True)

    def done(self, now: float) -> None:
        self._keeper.ended(now)


class _Age(Job):
    def __init__(self, keeper: Keeper, store: StagingStore) -> None:
        self._keeper = keeper
        self._store = store

    def run(self) -> None:
        self._store.age()

    def done(self, now: float) -> None:
        self._keeper.ended(now)


class _Leave(Job):
    """The last one."""

    def __init__(self, keeper: Keeper, owner: StagedChannel, store: StagingStore) -> None:
        self._keeper = keeper
        self._owner = owner
        self._store = store
        self._acknowledged = owner.acknowledged
        self._finished = owner.finished
        self._closed = owner.channel.state is ReceiverState.CLOSED
        self._stream = owner.core.random(16).hex()

    def run(self) -> None:
        store = self._store
        self._owner.feeder.close()
        try:
            if self._closed:
                store.discard()
                return
            store.acknowledge(self._acknowledged)
            if self._finished:
                # What comes after it is another stream; only then is the end of this one said to be done.
                store.start_over(self._stream)
        except NetChannelError as error:
            log.warning("%s", error)
        finally:
            store.close()

    def done(self, now: float) -> None:
        self._keeper.left(now)
