"""The retaining ends of channels, as their owners see them: at a receiver, and at a sender that listens."""

from __future__ import annotations

import asyncio
import uuid
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from netchannel.core.replay.retained_inbound import RetainedInbound
from netchannel.core.replay.retained_outbound import RetainedOutbound
from netchannel.errors import NetChannelError, SchemaMismatch
from netchannel.statistics import ReceiverChannelStatistics, SenderChannelStatistics
from netchannel.storage.disk_history import DiskHistory
from netchannel.storage.openers import HistoryOpener
from netchannel.values import CloseReport, Heads, check_given, with_article
from netchannel.wire.codec import CodecName, make_decoder, make_encoder
from netchannel.wire.frames import NOTE_LIMIT

from .identity import shown, shown_in_html
from .waiter import Changes, wait_for_farewell

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from netchannel.core.receiving.receiver_core import ReceiverCore
    from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy
    from netchannel.wire.codec import Encoder

YIELD_AFTER = 1 << 19
"""Bytes that `send` takes before it lets the loop turn, so that a busy producer starves no one."""


def keep_stream(
    core: ReceiverCore,
    channel_id: str,
    codec: CodecName,
    schema: pa.Schema | None,
    policy: RetainPolicy,
    *,
    buffer: BufferPolicy,
    fault: FaultPolicy,
    clock: Callable[[], float],
) -> RetainedChannel:
    """Register a channel that keeps what it receives. Raises ChannelInUse."""
    histories = HistoryOpener(core, channel_id, codec, policy)
    now = clock()
    inbound = RetainedInbound(
        core,
        channel_id,
        codec,
        policy,
        make_decoder=lambda: make_decoder(codec, schema),
        open_history=histories.replace,
        buffer=buffer,
        fault=fault,
    )
    history = histories.kept()
    try:
        inbound.start(history, now)
    except BaseException:
        if isinstance(history, DiskHistory):
            history.log.close()
        raise
    return RetainedChannel(inbound, clock)


class RetainedChannel:
    """A stream that is received and kept. Made by `ReceiverServer.retain_channel`.

    Messages are acknowledged to their sender once they are kept, and can be read with `ChannelReader`, here
    and elsewhere. When the channel is full, the sender is held back, until the consumers have acknowledged more.
    """

    def __init__(self, core: RetainedInbound, clock: Callable[[], float]) -> None:
        self._core = core
        self._clock = clock
        self._changes = Changes()
        core.on_change = self._changes.notify

    def __repr__(self) -> str:
        return shown(self, repr(self.id), str(self._core.channel.state))

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: its state and counters."""
        return shown_in_html(self, self.id, self.statistics())

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._core.id

    @property
    def stream(self) -> str | None:
        """The identity of the kept stream; None before a sender has connected."""
        return self._core.heads.stream or None

    @property
    def latest(self) -> Heads:
        """The current heads of the stream; their ``stream`` is empty before a sender has connected."""
        return self._core.heads

    async def heads(self, beyond: int | None = None) -> Heads:
        """Wait for the stream's heads; with ``beyond``, until ``head`` is above it or the stream has ended."""
        while True:
            heads = self._core.heads
            if heads.ended or (heads.stream and (beyond is None or heads.head > beyond)):
                return heads
            await self._changes.wait()

    def upquery(self, body: bytes) -> bool:
        """Ask the producer for something again, as `ReceiverChannel.upquery` does; the answers are kept."""
        self._changes.check_loop()
        check_given("body", body, bytes)
        return self._core.channel.upquery(body)

    async def close(self, reason: str = "the consumer is done", grace: float | None = None) -> None:
        """Stop receiving permanently: kept messages are dropped, and the producer gets `ChannelClosedByPeer`.

        Waits as `ReceiverChannel.close` does.
        """
        self._core.close(reason, self._clock())
        await self._heard(grace)

    async def detach(self, grace: float | None = None) -> None:
        """Leave the stream to a successor, which continues with the messages on disk. Waits as `close` does."""
        self._core.detach(self._clock())
        await self._heard(grace)

    async def _heard(self, grace: float | None) -> None:
        while not self._core.settled:
            await self._changes.wait()
        await wait_for_farewell(self._core.channel, self._changes, grace)

    def statistics(self) -> ReceiverChannelStatistics:
        """The channel's counters: ``acknowledged`` by all consumers, ``buffered_*`` is what is kept."""
        return retained_statistics(self._core)


def retained_statistics(core: RetainedInbound) -> ReceiverChannelStatistics:
    """The counters of a channel that is received and kept."""
    channel, history, heads = core.channel, core.history, core.heads
    return ReceiverChannelStatistics(
        state=str(channel.state),
        since=channel.since,
        received=core.received + channel.received,
        acknowledged=core.acknowledged,
        bytes=core.bytes + channel.bytes,
        buffered_messages=heads.head - heads.oldest,
        buffered_bytes=0 if history is None else history.kept_bytes,
        disk_bytes=0 if history is None else history.disk_bytes,
        reconnects=max(0, core.attachments + channel.attachments - 1),
        dropped=channel.dropped,
        shared_bytes=core.shared_bytes + channel.shared_bytes,
        starved=channel.starved,
        upqueries=core.upqueries + channel.upqueries,
    )


def check_note(note: bytes) -> None:
    """Raise TypeError or ValueError for what cannot be the note of a message."""
    if not isinstance(note, bytes):
        raise TypeError(f"a note is {with_article(type(note))}: expected bytes")
    if len(note) > NOTE_LIMIT:
        raise ValueError(f"a note has {len(note)} bytes: the limit is {NOTE_LIMIT}")


def offer_stream(
    core: ReceiverCore,
    channel_id: str,
    codec: CodecName,
    schema: pa.Schema | None,
    policy: RetainPolicy,
    *,
    stream: str | None,
    clock: Callable[[], float],
) -> RetainedSenderChannel:
    """Register a channel that keeps what is sent. Raises ChannelInUse."""
    histories = HistoryOpener(core, channel_id, codec, policy)
    now = clock()
    core.make_way(channel_id, now)
    history = histories.kept() or histories.begin(stream or uuid.uuid4().hex)
    try:
        if stream not in (None, history.stream):
            raise NetChannelError(
                f"the history of channel {channel_id!r} in {policy.directory} is stream {history.stream!r}, "
                f"but {stream!r} was requested: omit stream= to continue it, or use another directory"
            )
        if history.schema is not None and codec == "arrow":
            kept = pa.ipc.read_schema(pa.py_buffer(history.schema))
            if schema is not None and not schema.equals(kept):
                raise SchemaMismatch(
                    f"the history of channel {channel_id!r} has the schema ({kept}), but the channel was "
                    f"registered with ({schema}): use the schema of the history, or another directory"
                )
            schema = kept
        encoder = make_encoder(codec, schema)
        history.schema = encoder.schema or None
        outbound = RetainedOutbound(core, channel_id, codec, policy, history)
        core.offer(channel_id, outbound)
    except BaseException:
        if isinstance(history, DiskHistory):
            history.log.close()
        raise
    return RetainedSenderChannel(outbound, encoder, clock)


class RetainedSenderChannel:
    """A stream that is kept at its sender, for `ChannelReader`s. Made by `SenderServer.retain_channel`.

    ``send`` waits while the channel is full, until the consumers have acknowledged more.
    """

    def __init__(self, core: RetainedOutbound, encoder: Encoder, clock: Callable[[], float]) -> None:
        self.core = core
        self._encoder = encoder
        self._clock = clock
        self._changes = Changes()
        self._loop = asyncio.get_running_loop()
        self._sealing = False
        self._yielded_at = 0
        core.on_change = self._changes.notify
        core.begin(core.history, clock())

    def __repr__(self) -> str:
        return shown(self, repr(self.id), _state_of(self.core))

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: its state and counters."""
        return shown_in_html(self, self.id, self.statistics())

    @property
    def id(self) -> str:
        """The channel's id."""
        return self.core.id

    @property
    def stream(self) -> str:
        """The identity of the stream that this channel's numbers belong to."""
        return self.core.history.stream

    @property
    def position(self) -> int:
        """The number that the next `send` will get."""
        return self.core.position

    @property
    def latest(self) -> Heads:
        """The heads of the stream, as its readers see them."""
        return self.core.heads

    async def send(self, batch: Any, note: bytes = b"") -> None:
        """Accept a message; wait while the channel is full, and for the disk if the stream is kept on disk.

        The memory of ``batch`` is kept without a copy and must not change. ``note`` (at most 32 KiB) is sent with it.
        After a cancelled call, `position` shows if the message was accepted.

        Raises:
            SchemaMismatch: the batch has another schema than the channel.
            ChannelClosed, ChannelBroken: nothing can be sent any more.
        """
        await self._take(batch, note)
        await self._kept(self.core.position)

    async def send_many(self, batches: Iterable[Any]) -> None:
        """Accept several messages, in order, and wait for the disk once.

        Raises as `send` does; then `position` shows how many messages were accepted.
        """
        for batch in batches:
            await self._take(batch, b"")
        await self._kept(self.core.position)

    async def _take(self, batch: Any, note: bytes) -> None:
        core = self.core
        core.check_open()
        self._changes.check_loop()
        body = self._encoder.encode(batch)
        check_note(note)
        size = len(body) + len(note)
        while not core.room(size):
            self._seal()
            if not core.room(size):
                core.full(size, self._clock())
                await self._changes.wait()
            core.check_open()
        if core.history.schema is None:
            core.history.schema = self._encoder.schema or None
        rows = batch.num_rows if core.codec == "arrow" else 1
        core.append(body, note, self._encoder.context, rows, self._clock())
        if not self._sealing:
            self._sealing = True
            self._loop.call_soon(self._seal)
        if core.bytes + 64 * core.position - self._yielded_at >= YIELD_AFTER:
            self._yielded_at = core.bytes + 64 * core.position
            await asyncio.sleep(0)

    def _seal(self) -> None:
        self._sealing = False
        self.core.seal(self._clock())

    async def _kept(self, upto: int) -> None:
        """Wait until everything below ``upto`` is on the disk, if that is where it is kept."""
        core = self.core
        while core.history.durable and core.history.head < upto:
            if core.broken is not None:
                core.check_open()
            await self._changes.wait()

    async def flush(self) -> None:
        """Wait until all known consumers, at least one, have acknowledged everything sent so far."""
        upto = self.core.position
        while self.core.acknowledged < upto:
            if self.core.broken is not None or self.core.is_left:
                self.core.check_open()
            await self._changes.wait()

    async def close(self, grace: float | None = None) -> CloseReport:
        """End the stream, and wait until all known consumers have acknowledged all of it.

        After ``grace`` seconds it stops waiting, and the report shows how many messages were not acknowledged.
        Messages on disk are kept for the next process that registers the channel. After a cancelled call, the end stays
        queued.
        """
        core = self.core
        core.finish(None, self._clock())
        try:
            async with asyncio.timeout(grace):
                while not core.over:
                    if core.broken is not None:
                        core.check_open()
                    await self._changes.wait()
        except TimeoutError:
            done = core.acknowledged
            await self._leave(discard=False)
            return CloseReport(done, done, core.position - done)
        await self._discard()
        if core.aborted:
            core.check_open()
        return CloseReport(core.position)

    async def _discard(self) -> None:
        """Delete its files, as all of it is done with. Clients that ask are still answered that it has ended."""
        gone = False

        def discarded(now: float) -> None:
            nonlocal gone
            gone = True
            self._changes.notify()

        self.core.history.leave(discard=True, then=discarded, now=self._clock())
        while not gone:
            await self._changes.wait()

    async def abort(self, error: str | BaseException) -> None:
        """Fail the stream: readers get the sent messages, then the failure, as long as this process runs."""
        self.core.finish(
            error if isinstance(error, str) else f"{type(error).__name__}: {error}", self._clock()
        )

    async def detach(self) -> None:
        """Leave the stream to a successor: once all of it is acknowledged, or on disk."""
        if not self.core.history.durable:
            await self.flush()
        await self._leave(discard=False)

    async def _leave(self, *, discard: bool) -> None:
        self.core.leave(self._clock(), discard=discard)
        while not self.core.settled:
            await self._changes.wait()

    def statistics(self) -> SenderChannelStatistics:
        """The channel's counters: ``acknowledged`` by all consumers, ``buffered_*`` is what is kept."""
        return produced_statistics(self.core)


def _state_of(core: RetainedOutbound) -> str:
    return "broken" if core.broken is not None else "ended" if core.over else "attached"


def produced_statistics(core: RetainedOutbound) -> SenderChannelStatistics:
    """The counters of a channel that is kept where it is sent."""
    history = core.history
    return SenderChannelStatistics(
        state=_state_of(core),
        since=core.since,
        sent=core.position,
        received=history.head,
        acknowledged=core.acknowledged,
        bytes=core.bytes,
        buffered_messages=core.position - history.oldest,
        buffered_bytes=history.kept_bytes + core.packer.size,
        disk_bytes=history.disk_bytes,
    )
