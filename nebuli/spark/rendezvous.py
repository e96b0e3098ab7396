"""The meeting of a fragment's thread and Spark: servers on the worker's loop, kept channels, and a driver process."""

from __future__ import annotations

import asyncio
from collections import deque
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple

import netchannel
from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError, FragmentStopped
from nebuli.spark.driver_messages import FAILED, Report
from nebuli.spark.driver_process import DriverProcess

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping
    from concurrent.futures import Future
    from pathlib import Path

    import pyarrow as pa

    from nebuli.spark.driver_messages import Job
    from netchannel.servers.retained_channels import RetainedSenderChannel

_QUEUED_BATCHES = 4
_AHEAD_BYTES = 64 << 20
"""How far an endless input may be ahead of Spark."""
_ALL_BYTES = 1 << 62


class Addresses(NamedTuple):
    """The addresses at which Spark reads and writes."""

    source: str
    target: str


class Rendezvous:
    """A meeting, made on the loop, and used by one thread, except for ``interrupt``, which any thread may call."""

    def __init__(self, wake: Callable[[], None]) -> None:
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._stack = AsyncExitStack()
        self._inputs: dict[str, RetainedSenderChannel] = {}
        self._pump: asyncio.Task[None] | None = None
        self._queue: deque[pa.RecordBatch | Signal | FragmentError] = deque()
        self._room = asyncio.Event()
        self._driver: DriverProcess | None = None
        self._directory: Path | None = None
        self._lock = Lock()
        self._waiting: Future[Any] | None = None
        self._over: FragmentError | None = None
        self.phase = ""

    def open(
        self,
        host: str,
        secret: str,
        directory: Path,
        inputs: Mapping[str, pa.Schema],
        result: str,
        *,
        bounded: bool,
    ) -> Addresses:
        """Begin to keep ``inputs``, and to take ``result``, below ``directory``; at free ports of ``host``."""
        self._directory = directory
        limit = _ALL_BYTES if bounded else _AHEAD_BYTES
        retain = netchannel.RetainPolicy(max_bytes=limit, directory=directory / "kept")
        staging = netchannel.StagingPolicy(directory / "staged")

        async def opened() -> Addresses:
            enter = self._stack.enter_async_context
            sender = await enter(netchannel.SenderServer(f"{host}:0", secret=secret))
            receiver = await enter(netchannel.ReceiverServer(f"{host}:0", secret=secret))
            for source, schema in inputs.items():
                self._inputs[source] = sender.retain_channel(source, retain, schema=schema)
            channel = receiver.register_staged_channel(result, staging)
            self._pump = self._loop.create_task(self._receive(channel), name=f"pump {result}")
            assert sender.address is not None
            return Addresses(sender.address, receiver.address)

        addresses: Addresses = self._wait(opened())
        return addresses

    def drive(self, job: Job) -> None:
        """Start the driver."""
        self._driver = DriverProcess(job, self._heard)

    def send(self, source: str, rows: pa.RecordBatch) -> None:
        """Keep rows for Spark; waits while what is kept is full."""
        self._wait(self._inputs[source].send(rows))

    def flush(self) -> None:
        """Wait until Spark has computed all that was sent, and committed what it made of it."""

        async def flushed() -> None:
            for channel in self._inputs.values():
                await channel.flush()

        self._wait(flushed())

    def tell(self, command: str) -> None:
        """Send the driver a message."""
        assert self._driver is not None
        self._driver.tell(command)

    def poll(self) -> pa.RecordBatch | Signal:
        """The next batch of the result."""
        if not self._queue:
            if self._over is not None:
                raise self._over
            return Signal.LATER
        item = self._queue.popleft()
        self._loop.call_soon_threadsafe(self._room.set)
        if isinstance(item, FragmentError):
            raise item
        return item

    def interrupt(self) -> None:
        """Cancel present and later waits."""
        self._end(FragmentStopped("stopped"))

    def close(self) -> Path | None:
        """End the driver and the servers; what is left on disk is in the directory that is returned."""
        if self._driver is not None:
            self._driver.end()
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._close(), self._loop).result()
        return self._directory

    def _heard(self, report: Report) -> None:
        """Take a report, on a thread of the driver's. The end of the result also shows that it is done."""
        self.phase = report.phase
        if report.event == FAILED:
            self._end(FragmentError(f"Spark: {report.error}"))

    def _end(self, why: FragmentError) -> None:
        with self._lock:
            self._over = self._over or why
            if self._waiting is not None:
                self._waiting.cancel()
        self._wake()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        with self._lock:
            if self._over is not None:
                coroutine.close()
                raise self._over
            self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return self._waiting.result()
        except CancelledError:
            assert self._over is not None
            raise self._over from None
        except (netchannel.NetChannelError, OSError) as error:
            raise FragmentError(f"the channels to and from Spark have failed: {error}") from error

    async def _receive(self, channel: netchannel.ReceiverChannel) -> None:
        try:
            async for batch in channel:
                await self._put(batch)
        except netchannel.NetChannelError as error:
            await self._put(FragmentError(f"Spark's result: {error}"))
        except Exception as error:  # noqa: BLE001 - any error: the fragment waits for this task
            await self._put(FragmentError(f"Spark's result: {type(error).__name__}: {error}"))
        else:
            await self._put(Signal.END)

    async def _put(self, item: pa.RecordBatch | Signal | FragmentError) -> None:
        self._queue.append(item)
        self._wake()
        while len(self._queue) >= _QUEUED_BATCHES:
            self._room.clear()
            if len(self._queue) >= _QUEUED_BATCHES:
                await self._room.wait()

    async def _close(self) -> None:
        if self._pump is not None:
            self._pump.cancel()
        await self._stack.aclose()
