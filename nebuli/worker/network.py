"""Network sources and sinks: the same interface as files, over channels of the worker's event loop.

Channels live on the loop, fragments on threads of their own. A source's pump moves batches from its channel
into a short queue; while that is full it does not receive, and so the channel pushes back on its producer. A
sink waits in the fragment's thread for the channel to take a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeAlias

import netchannel
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from nebuli.worker.endpoints import Signal
from nebuli.worker.errors import DownstreamLeft, FragmentError, FragmentStopped, UpstreamFailed
from nebuli.worker.progress_notes import as_note, of_note

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from concurrent.futures import Future

    import pyarrow as pa

    from nebuli.dataflow import Progress
    from placement.plan import NetworkSink, NetworkSource

    _Item: TypeAlias = pa.RecordBatch | Progress | Signal | FragmentError

__all__ = ["ChannelSink", "ChannelSource"]

_QUEUED_BATCHES = 4
_LAST_WORDS_S = 5.0
"""How long a reader that is away is waited for, to be told why its input ends."""
_BUFFER = netchannel.BufferPolicy(max_bytes=8 << 20)
"""What a fragment is ahead of its reader, at most; more would only be memory."""


class ChannelSource:
    """Reads a channel of this worker's ReceiverServer. To be made on the loop, used by one thread."""

    def __init__(
        self, operator: NetworkSource, receiver: netchannel.ReceiverServer, wake: Callable[[], None]
    ) -> None:
        self._id = operator.id
        self._schema = zset.weighted(arrow_schema(operator.columns))
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._queue: deque[_Item] = deque()
        self._room = asyncio.Event()
        self._channel = receiver.register_channel(operator.channel, schema=self._schema)
        self._pump = self._loop.create_task(self._receive(), name=f"pump {operator.channel}")

    def open(self) -> None:
        """The channel is registered already; its producer may come when it likes."""

    def poll(self) -> pa.RecordBatch | Progress | Signal:
        """The next that has arrived; ``UpstreamFailed`` once the producer said so."""
        if not self._queue:
            return Signal.LATER
        item = self._queue.popleft()
        self._loop.call_soon_threadsafe(self._room.set)
        if isinstance(item, FragmentError):
            raise item
        return item

    def close(self, reason: str) -> None:
        """Take nothing more; a producer that is not done is told why."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._close(reason), self._loop)

    async def _close(self, reason: str) -> None:
        self._pump.cancel()
        await self._channel.close(reason)

    async def _receive(self) -> None:
        try:
            while True:
                message = await self._channel.recv_message()
                if message.batch.num_rows:
                    await self._put(message.batch)
                if message.note:
                    await self._put(of_note(message.note))
        except netchannel.EndOfChannel:
            await self._put(Signal.END)
        except FragmentError as error:
            await self._put(error)
        except netchannel.NetChannelError as error:
            await self._put(UpstreamFailed(f"its input {self._id} failed: {error}"))
        except Exception as error:  # noqa: BLE001 - whatever it is, the fragment waits for this task
            await self._put(FragmentError(f"its input {self._id}: {type(error).__name__}: {error}"))

    async def _put(self, item: _Item) -> None:
        self._queue.append(item)
        self._wake()
        while len(self._queue) >= _QUEUED_BATCHES:
            self._room.clear()
            if len(self._queue) >= _QUEUED_BATCHES:
                await self._room.wait()


class ChannelSink:
    """Writes to a channel of another worker. To be made on the loop, used by one thread."""

    def __init__(self, operator: NetworkSink, sender: netchannel.SenderServer) -> None:
        self._operator = operator
        self._sender = sender
        self._loop = asyncio.get_running_loop()
        self._channel: netchannel.SenderChannel | None = None
        self._nothing: pa.RecordBatch | None = None
        self._lock = Lock()
        self._waiting: Future[Any] | None = None
        self._interrupted = False

    def open(self, schema: pa.Schema) -> None:
        """Register the channel; whether anybody listens there, is not waited for."""
        self._nothing = zset.empty(schema)
        self._wait(self._register(schema))

    def write(self, change: pa.RecordBatch) -> int:
        """Hand a batch to the channel, as soon as it has room."""
        assert self._channel is not None
        self._wait(self._channel.send(change))
        return int(change.num_rows)

    def advance(self, progress: Progress) -> None:
        """Send it as the note of a message without rows: numbered, buffered and resumed like any other."""
        assert self._channel is not None
        self._wait(self._channel.send(self._nothing, as_note(progress)))

    def finish(self) -> int:
        """End the stream, and wait until the other side has all of it."""
        assert self._channel is not None
        self._wait(self._channel.close())
        return 0

    def abort(self, reason: str) -> None:
        """Tell the other side why the stream ends here, also before it began: a reader waits for that."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._abort(reason), self._loop).result()

    def interrupt(self) -> None:
        """Cancel what the fragment waits for, and whatever it will wait for."""
        with self._lock:
            self._interrupted = True
            if self._waiting is not None:
                self._waiting.cancel()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        with self._lock:
            if self._interrupted:
                coroutine.close()
                raise FragmentStopped("stopped")
            self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            self._waiting.result()
        except CancelledError:
            raise FragmentStopped("stopped") from None
        except netchannel.ChannelClosedByPeer as error:
            raise DownstreamLeft(f"its reader at {self._operator.address} left: {error}") from error
        except netchannel.NetChannelError as error:
            raise FragmentError(f"channel {self._operator.channel}: {error}") from error

    async def _register(self, schema: pa.Schema | None = None) -> None:
        self._channel = self._sender.register_channel(
            self._operator.channel, to=self._operator.address, schema=schema, buffer=_BUFFER
        )

    async def _abort(self, reason: str) -> None:
        with suppress(netchannel.NetChannelError):  # it has ended in another way: there is nobody to be told
            if self._channel is None:
                await self._register()
            assert self._channel is not None
            try:
                async with asyncio.timeout(_LAST_WORDS_S):
                    await self._channel.abort(reason)
            except TimeoutError:  # nobody is there to be told
                await self._channel.detach()
