"""Writing down what a staged channel promises: one thing after the other, on another thread than the core's."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, cast

from netchannel.core.groups.group_files import Files
from netchannel.core.link import Job, JobOwner
from netchannel.core.states import ReceiverState
from netchannel.errors import ChannelBroken, NetChannelError
from netchannel.log_texts import log
from netchannel.storage.jobs import TRIM_S

from .attempt_writer import AttemptWriter
from .feeder import Feeder

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from netchannel.core.groups.attempts import AttemptDecoder, SealedFile
    from netchannel.core.groups.group_files import Then
    from netchannel.core.groups.staged_channel import StagedChannel
    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.core.timers import Timer
    from netchannel.values import AttemptKey

    from .attempt_files import SealedAttempt
    from .staging_store import StagingStore

SPARE_S = 30.0
"""A file that is kept to be written again, and was not in this time, is deleted."""


class StagedFiles(JobOwner, Files):
    """Commits, deletes, and notes what the consumer has acknowledged; closes the files when the channel is over."""

    def __init__(self, store: StagingStore, owner: StagedChannel) -> None:
        self._owner = owner
        self._store = store
        self.feeder: Feeder = Feeder(
            owner.channel, store, on_read=self.request, on_fed=owner.look, on_left=owner.consumer_left
        )
        self._steps: deque[Callable[[], Job | None]] = deque()
        self._busy = False
        self._resting = False  # acknowledgements were noted a moment ago
        self._leaving = False
        self._ageing: Timer | None = None
        self.settled = False

    # -- what is there

    @property
    def stream(self) -> str:
        return self._store.stream

    @property
    def oldest(self) -> int:
        return self._store.oldest

    @property
    def acknowledged(self) -> int:
        return self._store.acknowledged

    @property
    def head(self) -> int:
        return self._store.state.head

    @property
    def ended(self) -> bool:
        return self._store.state.ended

    @property
    def schema(self) -> bytes | None:
        return self._store.state.schema

    @property
    def epochs(self) -> Mapping[str, int]:
        return self._store.state.epochs

    @property
    def found(self) -> Sequence[SealedAttempt]:
        return self._store.found

    @property
    def kept_bytes(self) -> int:
        return self._store.disk_bytes

    @property
    def spare_bytes(self) -> int:
        return self._store.spares.bytes

    @property
    def doubtful(self) -> bool:
        return self._store.doubtful

    # -- what is done

    def begin_attempt(
        self, key: AttemptKey, channel: InboundChannel, decoder: AttemptDecoder
    ) -> AttemptWriter:
        return AttemptWriter(self._owner, channel, decoder, self._store.attempt(key))

    def commit(
        self, application: str, epoch: int, winners: Sequence[SealedFile], *, end: bool, then: Then
    ) -> Job:
        return _Write(self, partial(self._store.commit, application, epoch, _whole(winners), end=end), then)

    def forget(self, application: str, then: Then) -> Job:
        return _Write(self, partial(self._store.forget, application), then)

    def drop(self, attempts: Sequence[SealedFile], then: Then) -> Job:
        return _Write(self, partial(self._store.remove, _whole(attempts), durably=True), then)

    def do(self, step: Callable[[], Job | None]) -> None:
        self._steps.append(step)
        self.request()

    def request(self) -> None:
        if not (self._busy or self.settled):
            self._owner.core.request(self)

    def leave(self) -> None:
        self._leaving = True
        self.request()

    def remove(self, attempts: Sequence[SealedFile]) -> None:
        self.do(lambda: _Remove(self, self._store, _whole(attempts)))

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

    def next(self, now: float) -> None:
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
        self.next(now)

    def _rested(self, now: float) -> None:
        self._resting = False
        self.request()


def _whole(attempts: Sequence[SealedFile]) -> list[SealedAttempt]:
    """The same, as the store that they come from knows them."""
    return cast("list[SealedAttempt]", attempts)


class _Write(Job):
    """Writes something to the disk before it is answered."""

    def __init__(self, files: StagedFiles, write: Callable[[], None], then: Then) -> None:
        self._files = files
        self._write = write
        self._then = then
        # Until it is known that it was done.
        self._error: NetChannelError | None = ChannelBroken(
            "writing it to the disk was interrupted: try again"
        )

    def run(self) -> None:
        try:
            self._write()
            self._error = None
        except NetChannelError as error:
            self._error = error

    def done(self, now: float) -> None:
        self._then(self._error, now)
        self._files.next(now)


class _Note(Job):
    def __init__(self, files: StagedFiles, store: StagingStore, upto: int) -> None:
        self._files = files
        self._store = store
        self._upto = upto
        self._kept = len(store.state.parts)

    def run(self) -> None:
        self._store.acknowledge(self._upto)

    def done(self, now: float) -> None:
        self._files.noted(now, freed=len(self._store.state.parts) < self._kept)


class _Remove(Job):
    def __init__(self, files: StagedFiles, store: StagingStore, attempts: Sequence[SealedAttempt]) -> None:
        self._files = files
        self._store = store
        self._attempts = attempts

    def run(self) -> None:
        self._store.remove(self._attempts, durably=True)

    def done(self, now: float) -> None:
        self._files.next(now)


class _Age(Job):
    def __init__(self, files: StagedFiles, store: StagingStore) -> None:
        self._files = files
        self._store = store

    def run(self) -> None:
        self._store.age()

    def done(self, now: float) -> None:
        self._files.next(now)


class _Leave(Job):
    """The last one."""

    def __init__(self, files: StagedFiles, owner: StagedChannel, store: StagingStore) -> None:
        self._files = files
        self._owner = owner
        self._store = store
        self._acknowledged = owner.acknowledged
        self._finished = owner.finished
        self._closed = owner.channel.state is ReceiverState.CLOSED
        self._stream = owner.core.random(16).hex()

    def run(self) -> None:
        store = self._store
        self._files.feeder.close()
        try:
            if self._closed:
                store.discard()
                return
            store.acknowledge(self._acknowledged)
            if self._finished:
                # The next messages are another stream's; only then the end of this one is reported as done.
                store.start_over(self._stream)
        except NetChannelError as error:
            log.warning("%s", error)
        finally:
            store.close()

    def done(self, now: float) -> None:
        self._files.left(now)
