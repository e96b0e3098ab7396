"""`ReceiverChannel` gives out the messages of one stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from netchannel.core.replay.retained_inbound import RetainedInbound
from netchannel.errors import EndOfChannel, NetChannelError, ProtocolError
from netchannel.statistics import ReceiverChannelStatistics
from netchannel.values import Message, Position, check_given
from netchannel.wire.codec import ArrowDecoder

from .identity import shown, shown_in_html
from .retained_channels import retained_statistics
from .waiter import Changes, wait_for_farewell

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.core.receiving.queue import Item
    from netchannel.wire.codec import Decoder


class ReceiverChannel:
    """The consumer's side of a stream; an async iterator. Made by `ReceiverServer.register_channel`.

    Its coroutines may be called from several tasks at once; each message goes to one of them.
    """

    def __init__(self, core: InboundChannel, decoder: Decoder, clock: Callable[[], float]) -> None:
        self._core = core
        self._changes = Changes(core.core)
        core.on_change = self._changes.notify
        self._decoder = decoder
        self._decode = self._decoded if isinstance(decoder, ArrowDecoder) else None
        self._clock = clock

    def __repr__(self) -> str:
        return shown(self, repr(self.id), str(self._core.state))

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: its state and counters."""
        return shown_in_html(self, self.id, self.statistics())

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._core.id

    @property
    def stream(self) -> str | None:
        """The identity of the received stream; None before a sender has connected."""
        return self._core.stream

    @property
    def position(self) -> Position | None:
        """The position of the next `recv`, as for ``resume_from``; None before a sender has connected."""
        core = self._core
        if core.stream is None or core.position is None:
            return None
        return Position(core.stream, core.position)

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        # As `recv`, without its coroutine, which would be another one for each message.
        queue, decode = self._core.queue, self._decode
        while True:
            for body in queue.ready:
                return body if decode is None else decode(body, queue.chunk.context)
            try:
                await self._more()
            except EndOfChannel:
                raise StopAsyncIteration from None

    async def recv(self) -> Any:
        """Wait for the next message's batch (or bytes). A cancelled call takes no message.

        Raises:
            EndOfChannel: the stream ended cleanly, and all of it was read.
            ChannelFailed: the producer aborted the stream, and all data before that was read.
            PositionLost, StreamReplaced: the stream cannot resume at ``resume_from``.
            SchemaMismatch: the sender has another schema or codec.
            ProtocolError: a message cannot be read; the channel ends there, and its sender is notified.
            ChannelBroken, ChannelClosed: no more messages will arrive.
        """
        queue, decode = self._core.queue, self._decode
        while True:
            for body in queue.ready:
                return body if decode is None else decode(body, queue.chunk.context)
            await self._more()

    async def recv_message(self) -> Message:
        """Wait for the next message, with its note, number and send timestamp."""
        item = await self.next_item()
        try:
            return self.read(item)
        except ProtocolError as error:
            self.unreadable(item.sequence, error)
            raise

    async def next_item(self) -> Item:
        """Wait for the next message as it was received; for faces on other threads, which `read` it there."""
        while (item := self._core.take()) is None:
            await self._more()
        return item

    async def _more(self) -> None:
        """Wait until there is a message. Raises what ended the channel.

        The error is raised once the channel's files are closed, so that it can be registered again.
        """
        core = self._core
        while True:
            try:
                if core.more():
                    return
            except NetChannelError:
                if core.error is None or not core.unsettled:
                    raise
                await self._settled()
                continue
            core.waiting += 1
            if not core.holder:
                core.miss_sender(self._clock())
            core.check_starved()
            try:
                await self._changes.wait()
            finally:
                core.waiting -= 1

    def put_back(self, item: Item) -> None:
        """Make ``item`` the next again: the task that took it was cancelled before it got it."""
        self._core.put_back(item)

    def read(self, item: Item) -> Message:
        """Decode an item."""
        body, note, sequence, timestamp, context = item
        return Message(
            self._decoder.decode(body, context, self._core.message_limit), note, sequence, timestamp
        )

    def _decoded(self, body: memoryview, context: memoryview | None) -> Any:
        try:
            return self._decoder.decode(body, context, self._core.message_limit)
        except ProtocolError as error:
            self.unreadable(self._core.queue.taken, error)
            raise

    def unreadable(self, number: int, error: ProtocolError) -> None:
        """Message ``number`` could not be decoded: nothing after it is delivered, and its sender is notified."""
        self._core.unreadable(number, error, self._clock())

    async def ack(self, upto: int | Position) -> None:
        """Acknowledge all messages below ``upto``, a number or a position; for channels with ``ack="explicit"``.

        A position in a stream that has been replaced has no effect.
        """
        core = self._core
        core.ack(upto, self._clock())
        if core.ended is not None and core.acked >= core.ended:
            await self._settled()

    def upquery(self, body: bytes) -> bool:
        """Ask the producer for something again: its `recv_upquery` returns ``body``, of at most 1 MiB.

        The answers come as messages of the stream, in their order. Returns at once. True: the request is sent on the
        current connection. It may still be lost with the connection, or dropped because too many wait at the producer,
        and is never sent again: a consumer that needs an answer asks again after a while, with its own id. False: the
        request is not sent, because no producer is attached, the stream has ended, the producer takes no upqueries, or
        1 024 upqueries, or 4 MiB of them, are still unwritten here. A staged channel always returns False.

        Raises:
            MessageTooLarge: ``body`` has more than 1 MiB.
        """
        self._changes.check_loop()
        check_given("body", body, bytes)
        return self._core.upquery(body)

    async def _settled(self) -> None:
        """Wait until the files of a channel that is over are closed, if it has any: then it can be made again."""
        while self._core.unsettled:
            await self._changes.wait()

    async def schema(self) -> pa.Schema | None:
        """Wait for the stream's schema, known before its data and on an empty stream; None with codec ``bytes``."""
        decoder = self._decoder
        if not isinstance(decoder, ArrowDecoder):
            return None
        while decoder.schema is None:
            self._core.check_live()
            await self._changes.wait()
        return decoder.schema

    async def close(self, reason: str = "the consumer is done", grace: float | None = None) -> None:
        """Stop receiving permanently: queued messages are dropped, and the producer gets `ChannelClosedByPeer`.

        Waits until a connected sender is notified, ``grace`` seconds at most (default: the server's ``leave_s``); then
        the process may end.
        """
        self._core.close(reason, self._clock())
        await self._settled()
        await wait_for_farewell(self._core, self._changes, grace)

    async def detach(self, grace: float | None = None) -> None:
        """Leave the stream to a successor. Received messages can still be read; later calls raise `ChannelClosed`.

        Unread messages of a staged channel with ``ack="receipt"`` go to the successor. Waits as `close` does.
        """
        self._core.detach(self._clock())
        await self._settled()
        await wait_for_farewell(self._core, self._changes, grace)

    def statistics(self) -> ReceiverChannelStatistics:
        """The channel's counters."""
        return statistics_of(self._core)


def statistics_of(core: InboundChannel) -> ReceiverChannelStatistics:
    """The counters of a channel that receives."""
    if isinstance(core.retainer, RetainedInbound):
        return retained_statistics(core.retainer)
    return ReceiverChannelStatistics(
        state=str(core.state),
        since=core.since,
        received=core.received,
        acknowledged=core.acknowledged,
        bytes=core.bytes,
        buffered_messages=len(core.queue),
        buffered_bytes=core.queue.bytes,
        disk_bytes=core.disk_bytes(),
        reconnects=max(0, core.attachments - 1),
        dropped=core.dropped,
        shared_bytes=core.shared_bytes,
        starved=core.starved,
        upqueries=core.upqueries,
    )
