"""`SenderChannel` takes the messages of one stream."""

from __future__ import annotations

import asyncio
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from netchannel.core.retries import COMPLAIN_AFTER_S
from netchannel.core.sending.lender import LENT_AT_ONCE, TOGETHER
from netchannel.core.states import SenderState
from netchannel.errors import BufferFull, NetChannelError, SchemaMismatch
from netchannel.log_texts import log
from netchannel.statistics import SenderChannelStatistics
from netchannel.values import CloseReport, check_given
from netchannel.wire.frames import SHARED_FROM

from .identity import shown, shown_in_html
from .retained_channels import check_note
from .waiter import Changes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.sending.packer import Ticket
    from netchannel.core.upqueries import Upqueries
    from netchannel.wire.codec import Encoder
    from netchannel.wire.frames import Body


YIELD_AFTER = 1 << 19
"""Bytes that `send` takes before it lets the loop turn, so that a busy producer starves no one."""
PIECE = 1 << 8
"""How many values of a list are looked at together."""
PACE_S = 0.002
"""How long it then waits at most for a connection that has more than it can write: what waits in a buffer leaves the
processor's cache, and comes late."""


class TakenUpquery(NamedTuple):
    """An upquery, and those of its connection among which it waited."""

    waiting: Upqueries
    body: bytes


def leave(ticket: Ticket | None) -> None:
    """Note that ``ticket`` is not waited for: `position` has shown its sender that it was taken."""
    if ticket is not None:
        ticket.final = True


class SenderChannel:
    """The producer's side of a stream to one receiver. Made by `SenderServer.register_channel`.

    Its coroutines may be called from several tasks at once; messages are numbered in the order in which the buffer
    accepts them.
    """

    def __init__(self, core: OutboundChannel, encoder: Encoder, clock: Callable[[], float]) -> None:
        self.core = core
        self.changes = Changes(core.core)
        core.on_change = self.changes.notify
        self._encoder = encoder
        self._clock = clock
        self._packer = core.packer
        self._allocations = encoder.allocations
        self._yielded_at = 0

    def __repr__(self) -> str:
        return shown(self, repr(self.id), str(self.core.state))

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: its state and counters."""
        return shown_in_html(self, self.id, self.statistics(), self.core.to)

    @property
    def id(self) -> str:
        """The channel's id."""
        return self.core.id

    @property
    def stream(self) -> str:
        """The identity of the stream that this channel's numbers belong to."""
        return self.core.stream

    @property
    def position(self) -> int:
        """The number that the next `send` will get.

        Raises NetChannelError on a replayable channel before `attached`, because the number is not known yet.
        """
        if not self.core.placed:
            raise NetChannelError(f"channel {self.id!r} has no position yet: await attached() first")
        return self.core.head

    def allocate(self, size: int) -> memoryview:
        """Return memory for a message of at most ``size`` bytes, to be filled and sent; returns at once.

        If the channel sends bodies through shared memory, and there is space in it, the returned memory is in shared
        memory, and is sent without a copy. Otherwise it is ordinary memory, with no other difference. Its initial
        contents are undefined.

        With the codec ``bytes``, send the view, or its first bytes: `send` releases the view, and later
        writes through it raise ValueError. With ``arrow``, make columns of it (``pyarrow.py_buffer``). Columns of
        primitive types without nulls are sent in place, if they are consecutive from the first byte on, each at the
        next multiple of 8; all other columns are copied as usual.

        Do not write to sent memory: the receiver may be reading it. It is freed once no object refers to it on either
        side.

        Raises:
            ValueError: ``size`` is below 1.
            MessageTooLarge: the receiver accepts no message of that size.
            ChannelClosed, ChannelClosedByPeer, ChannelBroken: nothing can be sent any more.
        """
        self.changes.check_loop()
        check_given("size", size, int)
        if size < 1:
            raise ValueError(f"memory of {size} bytes was requested: expected 1 or more")
        core, allocations = self.core, self._allocations
        core.check_open()
        core.check_size(size)
        whole = allocations.whole(size)
        memory = core.allocate(whole)
        return allocations.add(pa.py_buffer(bytearray(whole)) if memory is None else memory, size)

    async def send(self, batch: Any, note: bytes = b"") -> None:
        """Accept a message; wait while the buffer is full, by its policy, and for the disk if the buffer is durable.

        The memory of ``batch`` is sent without a copy and must not change until the message is acknowledged (`flush`).
        ``note`` (at most 32 KiB) is sent with it. After a cancelled call, `position` shows if the message was accepted.

        Raises:
            SchemaMismatch: the batch has another schema than the channel.
            MessageTooLarge: the message is larger than the receiver accepts.
            BufferFull: the buffer is full, and its policy is to fail. The message was not accepted.
            ChannelClosed, ChannelClosedByPeer, ChannelBroken: nothing can be sent any more.
        """
        try:
            body = self._encoder.encode(batch)
        except NetChannelError:
            self.core.check_open()  # which has more detail
            raise
        taken = note == b"" and self._packer.take(body)
        ticket = self._packer.ticket if taken else await self._append(body, note)
        if self._allocations.known:
            self._allocations.sent(batch)
        if ticket is not None:
            await self.committed(ticket)

    async def send_many(self, batches: Iterable[Any]) -> None:
        """Accept several messages, in order; wait for the disk of a durable buffer once.

        Raises as `send` does; then `position` shows how many messages were accepted.
        """
        core = self.core
        core.gathering += 1
        try:
            ticket = await (self._take_list(batches) if type(batches) is list else self._take_each(batches))
        except SchemaMismatch:
            core.check_open()
            raise
        finally:
            core.gathering -= 1
            if core.store is not None:
                core.store.request()
        if ticket is not None:
            await self.committed(ticket)

    async def _take_each(self, batches: Iterable[Any]) -> Ticket | None:
        """Take them, in order; the ticket of the last."""
        ticket = None
        encode, packer, take = self._encoder.encode, self._packer, self._packer.take
        try:
            for batch in batches:
                if ticket is not None and ticket.error is not None:
                    break
                body = encode(batch)
                ticket = packer.ticket if take(body) else await self._append(body, b"")
                if self._allocations.known:
                    self._allocations.sent(batch)
        except BaseException:
            leave(ticket)
            raise
        return ticket

    async def _take_list(self, batches: list[Any]) -> Ticket | None:
        """Take all of a list, in fewer steps: bytes that are in it already are taken by hundreds."""
        ticket, done = None, 0
        try:
            while done < len(batches) and (ticket is None or ticket.error is None):
                piece = batches[done : done + PIECE]
                if not self._encoder.as_they_are(piece):
                    taken, ticket = len(piece), await self._take_each(piece)
                elif taken := self._packer.take_some(piece):
                    ticket = self._packer.ticket
                else:  # without credit, one of them may bring some
                    taken, ticket = 1, await self._take_each(piece[:1])
                done += taken
        except BaseException:
            leave(ticket)
            raise
        return ticket

    async def take(self, batch: Any) -> Ticket | None:
        """`send` without waiting for the disk: its ticket shows when the message is durable."""
        body = self._encoder.encode(batch)
        ticket = self._packer.ticket if self._packer.take(body) else await self._append(body, b"")
        if self._allocations.known:
            self._allocations.sent(batch)
        return ticket

    async def _append(self, body: Body, note: bytes) -> Ticket | None:
        """Take a message that the packer has no credit for."""
        core = self.core
        self.changes.check_loop()
        if core.terminal:
            await self._settled()
        if note != b"":
            check_note(note)
        context = self._encoder.context
        if core.schema is None:
            core.schema = self._encoder.schema
        core.admit(body, context)
        size = core.cost(body, note, context)
        while not core.room(size):
            self._packer.revoke()  # no message overtakes waiting ones
            if core.placed and core.buffer.when_full == "fail":
                raise BufferFull(
                    f"channel {self.id!r} keeps {core.kept_bytes} bytes in memory and {core.disk_bytes} on disk, in "
                    f"{core.head - core.kept_from} messages, and {size} more bytes do not fit ({core.buffer}): wait "
                    f"with flush(), or use when_full='block'"
                )
            if core.make_room(size):
                break
            core.waiting += 1
            core.wait_for_room()
            try:
                await self.changes.wait()
            finally:
                core.waiting -= 1
            if core.terminal:
                await self._settled()
            core.admit(body, context)
        ticket = core.append(body, note, context, size)
        done = core.sealed_bytes + 64 * core.sealed
        if done - self._yielded_at >= self._at_once(len(body)):
            self._yielded_at = done
            try:
                await self._give_way()
            except asyncio.CancelledError:
                leave(ticket)
                raise
        return ticket

    def _at_once(self, size: int) -> int:
        """Bytes of messages like one of ``size`` that are taken before the loop turns."""
        if size >= SHARED_FROM and self.core.lends:
            return min(LENT_AT_ONCE, TOGETHER * size)
        return YIELD_AFTER

    async def _give_way(self) -> None:
        """Let the connection have its turn; one that has more than it can write gets a little time."""
        core = self.core
        await asyncio.sleep(0)
        if core.behind:
            core.pacing += 1
            try:
                await self.changes.wait(PACE_S)
            finally:
                core.pacing -= 1

    async def committed(self, ticket: Ticket) -> None:
        """Wait until it is durable. Raises what the disk, or the end of the channel, had against it."""
        core = self.core
        core.awaited += 1
        if core.store is not None:
            core.store.request()
        try:
            while not ticket.durable:
                if ticket.error is not None:
                    raise copy(ticket.error)
                if self.core.terminal:
                    await self._settled()
                    self.core.check_open()
                await self.changes.wait()
        except asyncio.CancelledError:
            leave(ticket)
            raise
        finally:
            core.awaited -= 1

    async def _settled(self) -> None:
        """Wait until the files are closed of a channel that is over: then its id can be registered again."""
        while not self.core.settled:
            await self.changes.wait()

    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged. Raises the error that ended the channel before that."""
        core, upto = self.core, self.core.head
        while core.acknowledged < upto:
            if core.terminal:
                await self._settled()
                core.check_open()
            core.ack_requests.flushing += 1
            core.want_acknowledgement()
            try:
                await self.changes.wait()
            finally:
                core.ack_requests.flushing -= 1

    async def attached(self) -> tuple[int, bytes]:
        """Wait for the receiver; return the number that it expects next, and the last note that it has."""
        while self.core.state is not SenderState.ATTACHED:
            if self.core.terminal:
                await self._settled()
            self.core.check_open()
            await self.changes.wait()
        return self.core.received, self.core.last_note

    async def recv_upquery(self) -> bytes:
        """Wait for the next upquery: the ``body`` of a `ReceiverChannel.upquery` of the consumer.

        Answer it by messages of the stream. Upqueries of the current connection arrive in the order in which they were
        sent. Upqueries that still wait when the connection is lost are lost with it. If more than 1 024 wait, or 4 MiB,
        the oldest is dropped. Each upquery goes to one of the callers; a cancelled call takes no upquery. The producer
        of a group gets no upqueries.

        Raises:
            ChannelClosed, ChannelClosedByPeer, ChannelBroken: nothing can be sent any more.
        """
        return (await self.next_upquery()).body

    async def next_upquery(self) -> TakenUpquery:
        """`recv_upquery`, for faces on other threads, which may have to `put_back` one that is no longer waited for."""
        core = self.core
        while True:
            if core.terminal:
                await self._settled()
            core.check_open()
            waiting = None if core.link is None else core.link.upqueries
            if waiting:
                return TakenUpquery(waiting, waiting.take())
            await self.changes.wait()

    def put_back(self, taken: TakenUpquery) -> None:
        """Make ``taken`` the next again; if its connection is gone, it goes where that has gone."""
        self.core.upqueries_dropped += not taken.waiting.put_back(taken.body)
        self.changes.notify()

    async def close(self, grace: float | None = None) -> CloseReport:
        """End the stream, and wait until the end and all before it are acknowledged.

        Without ``grace`` it waits as long as the fault policy allows. After ``grace`` seconds it gives up the remaining
        messages, and the report shows how many were not delivered. A durable buffer keeps these messages, and the next
        process that registers the channel delivers them, with the end. Raises the error that broke the channel. After a
        cancelled call, the end stays queued.
        """
        core = self.core
        if not core.terminal:
            core.finish()
        reminder = asyncio.get_running_loop().call_later(COMPLAIN_AFTER_S, self._say_what_is_missing)
        try:
            async with asyncio.timeout(grace):
                while not core.terminal:
                    await self.changes.wait()
        except TimeoutError:
            report = CloseReport(core.acknowledged, core.acknowledged, core.head - core.acknowledged)
            core.give_up(f"the time of close(grace={grace}) ran out", self._clock())
            await self._settled()
            return report
        finally:
            reminder.cancel()
        await self._settled()
        if core.state is not SenderState.ENDED or core.error is not None:
            core.check_open()
        return CloseReport(core.acknowledged)

    def _say_what_is_missing(self) -> None:
        """`close` has waited for a while; if there is no connection, that is reported already."""
        core = self.core
        if core.state is SenderState.ATTACHED and core.acknowledged < core.received == core.head:
            log.warning(
                "channel %s to %s: close() waits for %d messages, from number %d on, that its consumer has received "
                "but not acknowledged: it registered with ack='explicit', and must call ack()",
                core.id, core.to, core.head - core.acknowledged, core.acknowledged,
            )  # fmt: skip

    async def abort(self, error: str | BaseException) -> None:
        """Fail the stream: the consumer gets the sent messages, then `ChannelFailed` with ``error``.

        Waits until the receiver is notified, for at most the server's ``leave_s``. A durable buffer keeps the failure
        for the next process that registers the channel.
        """
        await self._fail(
            error if isinstance(error, str) else f"{type(error).__name__}: {error}",
            self.core.core.timing.leave_s,
        )

    async def _fail(self, why: str, within_s: float) -> None:
        """`abort`, waiting for so long at most."""
        core = self.core
        if not core.terminal:
            core.finish(why)
            try:
                async with asyncio.timeout(within_s):
                    while not core.terminal:
                        await self.changes.wait()
            except TimeoutError:
                core.give_up(f"aborted ({why}), and {core.to} was not notified in time", self._clock())
        await self._settled()

    async def detach(self) -> None:
        """Leave the stream to a successor, once all of it is acknowledged, or in a durable buffer.

        The successor registers with the same directory, or with ``stream=channel.stream, replayable=True``. A durable
        buffer keeps the end too, if the channel was closed.
        """
        core = self.core
        if not core.durable:
            core.check_open()
        core.leave()
        try:
            if not core.durable:
                await self.flush()
            while not (core.terminal or not core.durable or core.on_disk_entirely):
                await self.changes.wait()
            if not core.terminal:
                core.detach(self._clock())
        finally:
            core.stay()
        await self._settled()

    def statistics(self) -> SenderChannelStatistics:
        """The channel's counters."""
        core = self.core
        return SenderChannelStatistics(
            state=str(core.state),
            since=core.since,
            sent=core.head,
            received=core.received,
            acknowledged=core.acknowledged,
            bytes=core.taken_bytes,
            buffered_messages=core.head - core.kept_from,
            buffered_bytes=core.kept_bytes,
            disk_bytes=core.disk_bytes,
            in_flight=core.sent - core.kept_from,
            reconnects=core.reconnects,
            dropped=core.dropped,
            shared_bytes=core.shared_bytes,
            starved=core.starved,
            upqueries=core.upqueries,
            upqueries_dropped=core.upqueries_dropped,
        )
