"""Network sources and sinks: the same interface as files, over channels of the worker's event loop.

Channels live on the loop, fragments on threads of their own. A source's pump moves batches from its channel
into a short queue; while that is full it does not receive, and so the channel pushes back on its producer. A
sink waits in the fragment's thread for the channel to take a batch.

Each message has its position in its origin (`nebuli.connectors.positions`). The ends of an exact fragment
share a `Lineage`: its source acknowledges what it has read only once the reader of the sink has acknowledged all that
was made from it, and after a restart passes over what that reader has already.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

import netchannel
from nebuli.connectors.endpoints import Signal, Source
from nebuli.connectors.errors import FragmentError, InputLost, UpstreamFailed
from nebuli.connectors.outgoing_channel import OutgoingChannel
from nebuli.connectors.policies import received, tried
from nebuli.connectors.positions import END, Span, as_note, of_note
from nebuli.dataflow import zset
from nebuli.dataflow.rows import MAX_BATCH_ROWS
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    from nebuli.connectors.positions import Lineage
    from nebuli.dataflow import Progress
    from placement.plan import NetworkSink, NetworkSource

__all__ = ["HAS_ALL", "ChannelSink", "NetworkChannelSource"]

HAS_ALL = "it has received all of this input, and has finished"
"""Why nothing is taken any more for a fragment that has finished. A producer that gets it is done, too."""

_QUEUED_BATCHES, _QUEUED_BYTES, _MOST_QUEUED = 4, 4 << 20, 1024
"""A source takes so many batches ahead, and more only while all of them are small."""
_END_S = 2.0
"""How long a producer is waited for that has sent all there is, and not its end yet."""


class _Received(NamedTuple):
    batch: pa.RecordBatch
    span: Span
    progress: Progress | None
    sequence: int


class NetworkChannelSource(Source):
    """Reads a channel of this worker's ReceiverServer. To be made on the loop, used by one thread.

    Without a ``lineage`` messages are acknowledged at receipt: a fragment with state starts over anyway.
    """

    def __init__(
        self,
        operator: NetworkSource,
        receiver: netchannel.ReceiverServer,
        wake: Callable[[], None],
        lineage: Lineage | None = None,
    ) -> None:
        self._id = operator.id
        self._lossy = operator.lossy
        self._schema = zset.weighted(arrow_schema(operator.columns))
        self._wake = wake
        self._lineage = lineage
        self._given = False  # something, which is done when the next is asked for
        self._read = 0  # the end of what was read, in the origin
        self._unacknowledged: deque[tuple[int, int]] = (
            deque()
        )  # ends in the origin, with the numbers after them
        self._complete = asyncio.Event()  # all is acknowledged, the end too
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Received | Signal | FragmentError] = deque()
        self._put_bytes = 0  # into the queue, by the loop
        self._taken_bytes = 0  # out of it, by the fragment
        self._room = asyncio.Event()
        self._channel = receiver.register_channel(
            operator.channel,
            schema=self._schema,
            ack="receipt" if lineage is None else "explicit",
            buffer=received(operator.buffer),
            fault=tried(operator.fault),
        )
        self._pump = self._loop.create_task(self._receive(), name=f"pump {operator.channel}")
        self._acknowledging: asyncio.Task[None] | None = None
        if lineage is not None:
            lineage.acknowledge = self._acknowledge

    def open(self) -> None:
        """The channel is registered already; its producer may come when it likes."""

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """Return the next batch that has arrived; ``UpstreamFailed`` once the producer has reported a failure."""
        if self._lineage is not None:
            self._lineage.advance(also=self._given)
            if self._lineage.start == END:  # the sender may have received it before, and be gone
                return Signal.END
        self._given = False
        while self._queue:
            item = self._queue.popleft()
            self._loop.call_soon_threadsafe(self._room.set)
            match item:
                case _Received():
                    self._taken_bytes += item.batch.nbytes
                case FragmentError():
                    raise item
                case Signal():
                    return item
            is_new = self._is_new(item)
            self._given = is_new or item.progress is not None
            if item.progress is not None:
                return item.progress
            if is_new:
                return Signal.END if item.span.end == END else self._gathered(item.batch)
        return Signal.LATER

    def _gathered(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch with those that came after it: work of operators per batch is not done for a few rows.

        Not for an exact fragment, which has to know what was made from each.
        """
        batches, rows = [batch], batch.num_rows
        while self._lineage is None and self._queue and rows < MAX_BATCH_ROWS:
            item = self._queue[0]
            if not isinstance(item, _Received) or item.progress is not None or item.span.end == END:
                break
            if item.span.begin > self._read and not self._lossy:
                break  # a gap, which is reported in its turn
            self._queue.popleft()
            self._loop.call_soon_threadsafe(self._room.set)
            self._read = item.span.end
            self._taken_bytes += item.batch.nbytes
            batches.append(item.batch)
            rows += item.batch.num_rows
        return batch if len(batches) == 1 else pa.concat_batches(batches)

    def _is_new(self, item: _Received) -> bool:
        """True if the fragment has to work on it. Raises InputLost if it is not the next."""
        begin, end = item.span
        lineage = self._lineage
        if lineage is None:
            if not self._lossy:
                self._check(begin, self._read)
            self._read = end
            return end != END  # then the stream ends, which is all that this reader wants to know
        self._unacknowledged.append((end, item.sequence + 1))
        self._check(begin, max(self._read, lineage.start))
        if begin < lineage.start < end:
            raise InputLost(
                f"its input {self._id} contains rows {begin} to {end} of the origin, but rows "
                f"below {lineage.start} are already processed: the sending fragment was "
                f"restarted, and divides the rows differently"
            )
        self._read = end
        lineage.position = max(lineage.position, end)
        if end > lineage.start or end == END:
            return True
        lineage.advanced()  # one more that is done
        return False

    def _check(self, begin: int, known: int) -> None:
        if begin > known:
            raise InputLost(
                f"its input {self._id} continues at row {begin} of the origin, but this fragment "
                f"has {known} rows: the sending fragment and this fragment were restarted at the same time"
            )

    def close(self, reason: str) -> None:
        """Take nothing more; a producer that is not done gets the reason.

        After it the process may end: a producer that comes later finds no record of its stream.
        """
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._close(reason), self._loop).result()

    async def _close(self, reason: str) -> None:
        if self._complete.is_set():
            reason = HAS_ALL
            if self._read == END:  # that of the stream follows
                await asyncio.wait([self._pump], timeout=_END_S)
        self._pump.cancel()
        await self._channel.close(reason)

    async def _receive(self) -> None:
        try:
            while True:
                message = await self._channel.recv_message()
                await self._put(_Received(message.batch, *of_note(message.note), message.sequence))
        except netchannel.EndOfChannel:
            await self._put(Signal.END)
        except netchannel.ChannelFailed as error:
            await self._put(UpstreamFailed(f"its input {self._id} failed: {error.said}", error.said))
        except netchannel.NetChannelError as error:
            await self._put(UpstreamFailed(f"its input {self._id} failed: {error}"))
        except FragmentError as error:
            await self._put(error)
        except Exception as error:  # noqa: BLE001 - any error: the fragment waits for this task
            await self._put(FragmentError(f"its input {self._id}: {type(error).__name__}: {error}"))

    async def _put(self, item: _Received | Signal | FragmentError) -> None:
        self._queue.append(item)
        self._wake()
        if isinstance(item, _Received):
            self._put_bytes += item.batch.nbytes
        while self._is_full and not self._complete.is_set():
            self._room.clear()
            if self._is_full:
                await self._room.wait()

    @property
    def _is_full(self) -> bool:
        much = self._put_bytes - self._taken_bytes >= _QUEUED_BYTES
        return len(self._queue) >= (_QUEUED_BATCHES if much else _MOST_QUEUED)

    def _acknowledge(self, position: int) -> None:
        """Note, on the loop, that everything that was made from what lies below ``position`` is acknowledged."""
        upto = None
        while self._unacknowledged and self._unacknowledged[0][0] <= position:
            _, upto = self._unacknowledged.popleft()
        if position == END:
            self._complete.set()
            self._room.set()
            self._wake()
        if upto is not None:
            self._acknowledging = self._loop.create_task(self._acknowledge_upto(upto))

    async def _acknowledge_upto(self, upto: int) -> None:
        with suppress(netchannel.NetChannelError):  # the pump reports what ended the channel
            await self._channel.ack(upto)


class ChannelSink(OutgoingChannel):
    """Writes to a channel of another worker. To be made on the loop, used by one thread.

    ``resumed``: a predecessor may have sent some of it; the stream continues where its reader is.
    """

    def __init__(
        self,
        operator: NetworkSink,
        sender: netchannel.SenderServer,
        lineage: Lineage | None = None,
        *,
        resumed: bool = False,
    ) -> None:
        super().__init__(operator, sender, resumed=resumed)
        self._lineage = lineage
        self._sent = 0  # the end of what was sent, in the origin
        self._schema = pa.schema([])
        self._over = False  # the stream, of which a predecessor has sent the end
        self._news = asyncio.Event()
        self._watch: asyncio.Task[None] | None = None

    def open(self, schema: pa.Schema) -> None:
        """Register the channel; waits for a listener only to continue a predecessor's stream."""
        self._wait(self._open(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Hand a batch to the channel, as soon as it has room."""
        end = self._sent + change.num_rows if self._lineage is None else self._lineage.position
        self._wait(self._send(change, end))
        return int(change.num_rows)

    def advance(self, progress: Progress) -> None:
        """Send it as the note of a message without rows: numbered, buffered and resumed like any other."""
        self._wait(self._send(zset.empty(self._schema), self._sent, progress))

    def finish(self) -> int:
        """End the stream, and wait until the other side has all of it."""
        self._wait(self._finish())
        return 0

    async def _open(self, schema: pa.Schema) -> None:
        self._schema = schema
        self._register(schema)
        lineage = self._lineage
        if lineage is None:
            return
        if self._resumed:
            lineage.start = self._sent = lineage.done = await self._where_the_reader_is()
            # A reader that has all reports that only in answer to messages, and there may be no other.
            await self._send(zset.empty(schema), self._sent)
            self._news.set()
        lineage.advanced = self._advanced
        self._watch = self._loop.create_task(self._acknowledge(lineage))

    async def _where_the_reader_is(self) -> int:
        """The end, in the origin, of what a predecessor has sent; END if its reader has all, or wants nothing more."""
        assert self._channel is not None
        try:
            _, note = await self._channel.attached()
        except netchannel.ChannelClosedByPeer as error:
            if HAS_ALL not in error.said:
                raise
            self._over = True
        except netchannel.ChannelClosed:  # its end was taken
            self._over = True
        if self._over:
            return END
        return of_note(note)[0].end if note else 0

    async def _send(self, change: pa.RecordBatch, end: int, progress: Progress | None = None) -> None:
        assert self._channel is not None
        if self._sent == END:  # the reader has all
            return
        try:
            await self._channel.send(change, as_note(Span(self._sent, end), progress))
        except netchannel.ChannelClosedByPeer as error:
            if self._lineage is None or HAS_ALL not in error.said:
                raise
            self._lineage.start = end = END  # so the source has nothing more either
        self._sent = end

    async def _finish(self) -> None:
        assert self._channel is not None
        try:
            await self._send(zset.empty(self._schema), END)
            if not self._over:
                await self._channel.close()
        except netchannel.ChannelClosedByPeer as error:
            if HAS_ALL not in error.said:
                raise
        if self._watch is not None:
            self._watch.cancel()
        if self._lineage is not None:
            self._lineage.acknowledge(END)

    def _advanced(self) -> None:
        self._loop.call_soon_threadsafe(self._news.set)

    async def _acknowledge(self, lineage: Lineage) -> None:
        """Pass on to the source what the reader has acknowledged, also of what a predecessor has sent."""
        assert self._channel is not None
        try:
            while True:
                await self._news.wait()
                self._news.clear()
                done = lineage.done
                await self._channel.flush()
                lineage.acknowledge(done)
        except netchannel.ChannelClosedByPeer as error:
            if HAS_ALL in error.said:
                lineage.start = END
                lineage.acknowledge(END)
        except netchannel.NetChannelError:  # the fragment gets the error when it sends
            return

    async def _abort(self, reason: str) -> None:
        if self._watch is not None:
            self._watch.cancel()
        await super()._abort(reason)

    @property
    def _stream(self) -> str:
        """The channel's id is the deployment's own, and a fragment is started once: the next one is its successor."""
        return self._operator.channel
