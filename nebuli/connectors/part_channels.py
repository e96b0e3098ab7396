"""Channels between the parts of a graph with partial state: messages go down, in their order, and upqueries up.

A part that was killed starts over, with its own stream: its reader sees that as `CUT`, between the last
message of the old stream and the first of the new one.
"""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

import netchannel
from nebuli.connectors.errors import FragmentError, UpstreamFailed
from nebuli.connectors.outgoing_channel import OutgoingChannel
from nebuli.connectors.policies import received, tried
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Callable

    import pyarrow as pa

    from placement.plan import NetworkSink, NetworkSource

__all__ = ["CUT", "PartMessage", "PartSink", "PartSource"]

_QUEUED_BYTES, _QUEUED = 4 << 20, 1024
"""Bound on messages that a part takes ahead from a channel: then the channel holds back its producer."""


class PartMessage(NamedTuple):
    """A Z-set, and what it means to the graph."""

    batch: pa.RecordBatch
    note: bytes


class _Cut(Enum):
    CUT = "cut"


CUT: Final = _Cut.CUT
"""Here messages may be lacking: their sender was restarted."""


class PartSource:
    """Reads a channel of this process' ReceiverServer. To be made on the loop, used by one thread."""

    def __init__(
        self, operator: NetworkSource, receiver: netchannel.ReceiverServer, wake: Callable[[], None]
    ) -> None:
        self._operator = operator
        self._receiver = receiver
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._queue: deque[PartMessage | _Cut | FragmentError] = deque()
        self._put_bytes = 0  # into the queue, by the loop
        self._taken_bytes = 0  # out of it, by the fragment
        self._room = asyncio.Event()
        self._is_held = False  # the pump, until there is room
        self._channel = self._registered()
        self._pump = self._loop.create_task(self._receive(), name=f"pump {operator.channel}")

    def poll(self) -> PartMessage | _Cut | None:
        """Return the next message, if there is one. Raises UpstreamFailed once the producer has reported a failure."""
        if not self._queue:
            return None
        item = self._queue.popleft()
        if isinstance(item, PartMessage):
            self._taken_bytes += item.batch.nbytes
        if self._is_held:  # it looks for room once more after it has reported that
            self._loop.call_soon_threadsafe(self._room.set)
        if isinstance(item, FragmentError):
            raise item
        return item

    def ask(self, upquery: bytes) -> None:
        """Send an upquery to the part that feeds the channel, if it is there now; it may be lost."""
        self._loop.call_soon_threadsafe(self._ask, upquery)

    def interrupt(self) -> None:
        """Nothing here blocks."""

    def close(self, reason: str) -> None:
        """Take nothing more; the producer gets the reason."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._close(reason), self._loop).result()

    def _registered(self) -> netchannel.ReceiverChannel:
        return self._receiver.register_channel(
            self._operator.channel,
            schema=zset.weighted(arrow_schema(self._operator.columns)),
            ack="receipt",
            buffer=received(self._operator.buffer),
            fault=tried(self._operator.fault),
        )

    def _ask(self, upquery: bytes) -> None:
        with suppress(netchannel.NetChannelError):  # the pump reports what has ended the channel
            self._channel.upquery(upquery)

    async def _close(self, reason: str) -> None:
        self._pump.cancel()
        await self._channel.close(reason)

    async def _receive(self) -> None:
        id_ = self._operator.id
        try:
            while True:
                try:
                    message = await self._channel.recv_message()
                except netchannel.StreamReplaced:
                    await self._channel.detach()
                    self._channel = self._registered()
                    await self._put(CUT)
                else:
                    await self._put(PartMessage(message.batch, message.note))
        except netchannel.EndOfChannel:
            await self._put(
                UpstreamFailed(
                    f"its input {id_} has ended, but the inputs of a query with views must not end"
                )
            )
        except netchannel.ChannelFailed as error:
            await self._put(UpstreamFailed(f"its input {id_} failed: {error.said}", error.said))
        except netchannel.NetChannelError as error:
            await self._put(UpstreamFailed(f"its input {id_} failed: {error}"))
        except Exception as error:  # noqa: BLE001 - any error: the fragment waits for this task
            await self._put(FragmentError(f"its input {id_}: {type(error).__name__}: {error}"))

    async def _put(self, item: PartMessage | _Cut | FragmentError) -> None:
        self._queue.append(item)
        self._wake()
        if isinstance(item, PartMessage):
            self._put_bytes += item.batch.nbytes
        while self._is_full:
            self._room.clear()
            self._is_held = True
            if self._is_full:
                await self._room.wait()
            self._is_held = False

    @property
    def _is_full(self) -> bool:
        return len(self._queue) >= _QUEUED or self._put_bytes - self._taken_bytes >= _QUEUED_BYTES


class PartSink(OutgoingChannel):
    """Writes to a channel of another worker, and receives its upqueries. To be made on the loop, used by one thread.

    ``heard`` is called on the loop with each upquery.
    """

    def __init__(
        self, operator: NetworkSink, sender: netchannel.SenderServer, heard: Callable[[bytes], None]
    ) -> None:
        super().__init__(operator, sender)
        self._heard = heard
        self._hearing: asyncio.Task[None] | None = None

    def open(self, schema: pa.Schema) -> None:
        """Register the channel; its reader need not be there."""
        self._wait(self._open(schema))

    def send(self, message: PartMessage) -> None:
        """Hand a message to the channel, as soon as it has room."""
        self._wait(self._send(message))

    async def _open(self, schema: pa.Schema) -> None:
        self._register(schema)
        self._hearing = self._loop.create_task(self._hear(), name=f"upqueries of {self._operator.channel}")

    async def _send(self, message: PartMessage) -> None:
        assert self._channel is not None
        await self._channel.send(message.batch, message.note)

    async def _hear(self) -> None:
        assert self._channel is not None
        with suppress(
            netchannel.NetChannelError
        ):  # the next message gets the error that has ended the channel
            while True:
                self._heard(await self._channel.recv_upquery())

    async def _abort(self, reason: str) -> None:
        if self._hearing is not None:
            self._hearing.cancel()
        await super()._abort(reason)
