"""A receiver's channel whose consumer is a history: what comes is kept, acknowledged, and served to clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.receiving.tombstones import Tombstone
from netchannel.core.sending.send_buffer import Record
from netchannel.core.states import ReceiverState
from netchannel.errors import NetChannelError, ProtocolError, SchemaMismatch
from netchannel.log_texts import log, printable
from netchannel.values import Position
from netchannel.wire.frames import pack
from netchannel.wire.rows import count_rows

from .retained_service import RetainedService

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.core.receiving.queue import Chunk
    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy
    from netchannel.wire.codec import Decoder

    from .history import History


class RetainedInbound(RetainedService):
    """Keeps one stream after the other; the next one begins when all consumers are done with the one before.

    ``open_history(stream, start, before, then)`` makes the history of a new stream, in the place of the one before,
    and gives it to ``then``, now or later.
    """

    def __init__(
        self,
        core: ReceiverCore,
        channel_id: str,
        codec: str,
        policy: RetainPolicy,
        *,
        make_decoder: Callable[[], Decoder],
        open_history: OpenHistory,
        buffer: BufferPolicy,
        fault: FaultPolicy,
    ) -> None:
        super().__init__(core, channel_id, codec, policy)
        self._make_decoder = make_decoder
        self._open_history = open_history
        self._opening = False
        self._buffer = buffer
        self._fault = fault
        self._context_of: memoryview | None = None
        self._context = b""
        # Those of earlier streams.
        self.received = self.bytes = self.shared_bytes = self.attachments = self.upqueries = 0
        self.channel: InboundChannel

    def start(self, history: History | None, now: float) -> None:
        """Register the channel, to continue with ``history``. Raises ChannelInUse."""
        self._register(history, now)
        self.core.services.offered[self.id] = self
        if history is not None:
            if history.ending is not None:
                self._bury(history, now)
            self.begin(history, now)

    def _register(self, history: History | None, now: float) -> None:
        going_on = history is not None and history.ending is None
        self.channel = self.core.register(
            self.id,
            codec=self.codec,
            decoder=self._make_decoder(),
            explicit=True,
            resume_from=Position(history.stream, history.head) if history is not None and going_on else None,
            buffer=self._buffer,
            fault=self._fault,
            now=now,
            service=self,
        )
        self.channel.retainer = self
        self.channel.on_change = self._changed

    def _bury(self, history: History, now: float) -> None:
        """Remember that the stream is over, for its sender, which may come late."""
        assert history.ending is not None
        reason, text = ("end", "it ended cleanly")
        if history.ending.failure is not None:
            reason, text = "failed", history.ending.failure
        self.core.registry.tombstones.bury(
            self.id, history.stream, Tombstone(history.ending.count, reason, text[:1000]), now
        )

    # -- the channel's side

    @property
    def end_kept(self) -> bool:
        """True if the end of the channel's stream is kept, and may be acknowledged."""
        history = self.history
        return history is not None and history.stream == self.channel.stream and history.ending is not None

    def against(self) -> str:
        """Why no new stream is taken now; empty if one is."""
        history = self.history
        if history is None or self._is_read(history):
            return ""
        kept = f"is kept up to number {history.head}"
        if history.ending is not None:
            kept = f"has ended at number {history.ending.count}"
        return (
            f"channel {self.id!r}: stream {history.stream!r} {kept}, but its consumers have acknowledged it only up "
            f"to {self.acknowledged}: a new stream is accepted after they have acknowledged all of it"
        )

    def _is_read(self, history: History) -> bool:
        """True if all known consumers have acknowledged all that there is, or will be if it has an end."""
        lowest = self.consumers.lowest
        end = history.head if history.ending is None else history.ending.count
        return lowest is None or lowest >= end

    def _changed(self) -> None:
        channel = self.channel
        if self.is_left:
            self.on_change()
        elif channel.terminal and channel.state is not ReceiverState.ENDED and channel.error is not None:
            self.fail(channel.error, channel.since)

    def drain(self, now: float) -> None:
        """The channel has received something, or the disk, or a consumer, has made room."""
        if self._take_in(now):
            self._kept(now)

    def kept(self, now: float) -> None:
        self._take_in(now)
        self._kept(now)

    def _kept(self, now: float) -> None:
        channel, history = self.channel, self.history
        if history is not None and history.stream == channel.stream and not channel.terminal:
            if history.head > channel.acked:
                channel.ack(history.head, now)
            channel.maybe_finish(now)
            if channel.state is ReceiverState.ENDED:
                log.info("channel %s: stream %s has ended and is kept", self.id, printable(history.stream))
                self.received += channel.received
                self.bytes += channel.bytes
                self.shared_bytes += channel.shared_bytes
                self.attachments += channel.attachments
                self.upqueries += channel.upqueries
                self._register(history, now)
        if history is not None and self._is_read(history):
            self.core.announce(self.id)
        super().kept(now)

    def _take_in(self, now: float) -> bool:
        """Give the history what has been received, as far as there is room; whether anything has changed."""
        channel, history = self.channel, self.history
        if channel.stream is None or channel.position is None or channel.terminal:
            return False
        if history is None or history.stream != channel.stream:
            self._begin(channel.stream, channel.position, now)
            return False
        if history.error is not None:
            channel.fail(history.error, now)
            return False
        changed = self._learn(channel, history)
        try:
            while (size := channel.queue.next_size) is not None and history.room(size):
                chunk = channel.take_chunk()
                self._keep(history, chunk)
                changed = True
            if size is not None:
                self.full(size, now)
        except (SchemaMismatch, ProtocolError) as error:
            channel.fail(error, now)
        if channel.ended is not None and history.taken == channel.ended and history.ending is None:
            history.finish(channel.failure)
            changed = True
        return changed

    def _begin(self, stream: str, start: int, now: float) -> None:
        if self._opening:
            return
        self._opening = True

        def opened(history: History | NetChannelError, now: float) -> None:
            self._opening = False
            if isinstance(history, NetChannelError):
                self.channel.fail(history, now)
            else:
                self.begin(history, now)

        self._open_history(stream, start, self.history, opened, now)

    def _learn(self, channel: InboundChannel, history: History) -> bool:
        if history.schema is None and (schema := channel.decoder.learned):
            history.schema = schema
            return True
        return False

    def _keep(self, history: History, chunk: Chunk) -> None:
        bodies, context = chunk.bodies, chunk.context
        if context is not self._context_of:
            self._context_of = context
            if context is None:
                self._context = b""
            elif context != self._context:  # after each reconnection the same comes again, as another object
                self._context = bytes(context)
        rows = sum(map(count_rows, bodies)) if self.codec == "arrow" else len(bodies)
        largest = max(len(self._context), *map(len, bodies))
        first, size = chunk.first, chunk.size
        if len(bodies) == 1:
            note = chunk.notes[0] if chunk.notes else b""
            record = Record(
                first, chunk.end, size, largest, (), self._context, bodies[0], note, chunk.timestamp
            )
        else:
            notes = {place: note for place, note in enumerate(chunk.notes) if note}
            frame = pack(bodies, notes, first, chunk.timestamp)
            record = Record(first, chunk.end, size, largest, frame, self._context, timestamp=chunk.timestamp)
        history.keep(record, rows, size)

    # -- the owner's side

    def close(self, reason: str, now: float) -> None:
        """Take no more, ever, and serve nothing any more."""
        self.leave(now, discard=True)
        self.channel.close(reason, now)

    def detach(self, now: float) -> None:
        """Leave the stream to a successor."""
        self.leave(now, discard=False)
        self.channel.detach(now)


if TYPE_CHECKING:
    OpenHistory = Callable[
        [str, int, History | None, Callable[[History | NetChannelError, float], None], float], None
    ]
