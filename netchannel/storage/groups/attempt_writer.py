"""An attempt of a staged group at the receiver: what comes is written to a file, and sealed where it ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64, xxh3_64_intdigest

from netchannel.core.link import Job, JobOwner
from netchannel.core.states import ReceiverState
from netchannel.errors import NetChannelError

from .staged_records import packed

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.groups.attempts import AttemptDecoder
    from netchannel.core.groups.staged_channel import StagedChannel
    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.core.receiving.queue import Chunk
    from netchannel.values import AttemptKey

    from .attempt_files import AttemptFile, SealedAttempt


WRITE_BYTES = 1 << 22
"""Bytes written by a job: what is written soon after it came may still be in the processor's cache."""


class AttemptWriter(JobOwner):
    """Writes down what an attempt's channel receives, which is known to no one else by its id."""

    def __init__(
        self, owner: StagedChannel, channel: InboundChannel, decoder: AttemptDecoder, file: AttemptFile
    ) -> None:
        self.channel = channel
        self.bytes = 0  # of its file, with what is being written
        self._owner = owner
        self._decoder = decoder
        self._file = file
        self._digest = xxh3_64()
        self._busy = False
        self._over = False
        channel.unsettled = True
        channel.on_change = self.request
        self.request()

    @property
    def key(self) -> AttemptKey:
        """The key of the attempt that is written."""
        return self._file.key

    def request(self) -> None:
        """There may be something to do."""
        if not (self._busy or self._over):
            self.channel.core.request(self)

    def begin(self) -> Job | None:
        if self._busy or self._over:
            return None
        job = self._work()
        self._busy = job is not None
        return job

    def _work(self) -> Job | None:
        channel = self.channel
        if channel.terminal:
            return _Discard(self, self._file)
        if chunks := channel.drain(WRITE_BYTES):
            self.bytes += sum(chunk.size for chunk in chunks)
            if against := self._owner.over_limit(self):
                return _Then(partial(self.give_up, against))
            return _Write(self, self._file, self._digest, chunks, self._decoder.learned)
        if channel.ended is not None:
            return _Seal(self, self._file, self._digest, self._decoder.learned)
        return _Then(self._leave) if self._unused else None

    @property
    def _unused(self) -> bool:
        """True if nothing has come, and no sender is there."""
        return self.channel.state is ReceiverState.REGISTERED and not self.channel.received

    def _leave(self, now: float) -> None:
        """Give the place to another one; a sender that comes after all gets a new one."""
        if self._unused:
            self.channel.detach(now)
        self.ended()

    def ended(self) -> None:
        """The job is done."""
        self._busy = False
        self.request()

    def written(self, now: float) -> None:
        """Continue once the drained messages are in the file, which has grown by more than the messages."""
        self.bytes = self._file.size
        if against := self._owner.over_limit(self):
            self.give_up(against, now)
        else:
            self.ended()

    def give_up(self, reason: str, now: float) -> None:
        """Take no more of it: its sender is notified, and nothing of it is kept."""
        self.channel.close(reason, now)
        self.ended()

    def sealed(self, sealed: SealedAttempt, now: float) -> None:
        """Let the sender know that all of it is on the disk, unless its channel is over by now."""
        if self.channel.terminal:
            self.ended()
            return
        self._over = True
        self._owner.sealed(self, sealed, now)
        self.channel.settle(now)

    def discarded(self) -> None:
        """Note that nothing of it is left."""
        self._over = True
        self._owner.forget(self)


class _Write(Job):
    def __init__(
        self, attempt: AttemptWriter, file: AttemptFile, digest: Any, chunks: list[Chunk], schema: bytes
    ) -> None:
        self._attempt = attempt
        self._file = file
        self._digest = digest
        self._chunks = chunks
        self._schema = schema
        self._error = "writing it was interrupted"

    def run(self) -> None:
        try:
            self._chunks.reverse()
            while self._chunks:
                chunk = self._chunks.pop()  # its memory is free again once it is written
                digests = list(map(xxh3_64_intdigest, chunk.bodies))
                self._digest.update(b"".join([digest.to_bytes(8, "little") for digest in digests]))
                flags, buffers = packed(chunk)
                self._file.append(
                    len(chunk.bodies),
                    buffers,
                    timestamp=chunk.timestamp,
                    flags=flags,
                    size=chunk.size,
                    digest=0 if flags else digests[0],
                    schema=self._schema,
                    context=self._context(chunk.context),
                )
            self._error = ""
        except NetChannelError as error:
            self._error = str(error)

    @staticmethod
    def _context(view: memoryview | None) -> bytes:
        """Return the bytes themselves: equal ones are recognized as the same object."""
        if view is None:
            return b""
        return view.obj if isinstance(view.obj, bytes) else bytes(view)

    def done(self, now: float) -> None:
        if self._error:
            self._attempt.give_up(self._error, now)
        else:
            self._attempt.written(now)


class _Then(Job):
    """There is nothing to run, but a time to do something at."""

    def __init__(self, then: Callable[[float], None]) -> None:
        self._then = then

    def run(self) -> None:
        pass

    def done(self, now: float) -> None:
        self._then(now)


class _Seal(Job):
    def __init__(self, attempt: AttemptWriter, file: AttemptFile, digest: Any, schema: bytes) -> None:
        self._attempt = attempt
        self._file = file
        self._checksum = digest.intdigest()
        self._schema = schema
        self._sealed: SealedAttempt | None = None
        self._error = "sealing it was interrupted"

    def run(self) -> None:
        try:
            self._sealed = self._file.seal(self._checksum, self._schema)
        except NetChannelError as error:
            self._error = str(error)

    def done(self, now: float) -> None:
        if self._sealed is None:
            self._attempt.give_up(self._error, now)
        else:
            self._attempt.sealed(self._sealed, now)


class _Discard(Job):
    def __init__(self, attempt: AttemptWriter, file: AttemptFile) -> None:
        self._attempt = attempt
        self._file = file

    def run(self) -> None:
        self._file.discard()

    def done(self, now: float) -> None:
        self._attempt.discarded()
