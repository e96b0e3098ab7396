"""The process-wide services: one sender and one receiver on a background thread, as blocking objects.

For code that has no event loop, such as a Spark task. The thread runs a uvloop of its own; it is started by the
first call and stopped, after leaving both servers, when the interpreter exits. A forked child starts anew.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Self, TypeVar

import uvloop

from netchannel.errors import EndOfChannel, NetChannelError
from netchannel.receiver import ReceiverChannel, ReceiverServer
from netchannel.sender import SenderChannel, SenderServer

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable

    import pyarrow as pa

    from netchannel.values import ChannelStatistics, CloseReport, Message, Position

T = TypeVar("T")

DEFAULT_LISTEN = "127.0.0.1:0"


class _Thread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="netchannel", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run ``coroutine`` there and wait for it here; an interrupt here cancels it there."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def call(self, function: Callable[..., T], *args: Any, **settings: Any) -> T:
        """Call ``function`` there and wait for its result here."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args, **settings))
            except Exception as error:  # noqa: BLE001 - it is raised where the caller waits
                future.set_exception(error)

        self._loop.call_soon_threadsafe(run)
        return future.result()

    def stop(self) -> None:
        """Stop the loop and the thread."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingSenderChannel:
    """`SenderChannel` for threads without an event loop: the same names, and each call waits for its result."""

    def __init__(self, thread: _Thread, channel: SenderChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str:
        """As `SenderChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> int:
        """As `SenderChannel.position`."""
        return self._channel.position

    def send(self, batch: Any, note: bytes = b"") -> None:
        """As `SenderChannel.send`."""
        self._thread.wait(self._channel.send(batch, note))

    def send_many(self, batches: Iterable[Any]) -> None:
        """As `SenderChannel.send_many`."""
        self._thread.wait(self._channel.send_many(batches))

    def flush(self) -> None:
        """As `SenderChannel.flush`."""
        self._thread.wait(self._channel.flush())

    def attached(self) -> tuple[int, bytes]:
        """As `SenderChannel.attached`."""
        return self._thread.wait(self._channel.attached())

    def close(self, grace: float | None = None) -> CloseReport:
        """As `SenderChannel.close`."""
        return self._thread.wait(self._channel.close(grace))

    def abort(self, error: str | BaseException) -> None:
        """As `SenderChannel.abort`."""
        self._thread.wait(self._channel.abort(error))

    def detach(self) -> None:
        """As `SenderChannel.detach`."""
        self._thread.wait(self._channel.detach())

    def statistics(self) -> ChannelStatistics:
        """As `SenderChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingReceiverChannel:
    """`ReceiverChannel` for threads without an event loop: the same names, and each call waits; an iterator."""

    def __init__(self, thread: _Thread, channel: ReceiverChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `ReceiverChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> Position | None:
        """As `ReceiverChannel.position`."""
        return self._channel.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except EndOfChannel:
            raise StopIteration from None

    def recv(self) -> Any:
        """As `ReceiverChannel.recv`."""
        return self._thread.wait(self._channel.recv())

    def recv_message(self) -> Message:
        """As `ReceiverChannel.recv_message`."""
        return self._thread.wait(self._channel.recv_message())

    def ack(self, upto: int) -> None:
        """As `ReceiverChannel.ack`."""
        self._thread.wait(self._channel.ack(upto))

    def schema(self) -> pa.Schema | None:
        """As `ReceiverChannel.schema`."""
        return self._thread.wait(self._channel.schema())

    def close(self, reason: str = "the consumer is done") -> None:
        """As `ReceiverChannel.close`."""
        self._thread.wait(self._channel.close(reason))

    def detach(self) -> None:
        """As `ReceiverChannel.detach`."""
        self._thread.wait(self._channel.detach())

    def statistics(self) -> ChannelStatistics:
        """As `ReceiverChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingSenderServer:
    """The process-wide `SenderServer`."""

    def __init__(self, thread: _Thread, server: SenderServer) -> None:
        self._thread = thread
        self._server = server

    def register_channel(self, channel_id: str, to: str, **settings: Any) -> BlockingSenderChannel:
        """As `SenderServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, to, **settings)
        return BlockingSenderChannel(self._thread, channel)


class BlockingReceiverServer:
    """The process-wide `ReceiverServer`."""

    def __init__(self, thread: _Thread, server: ReceiverServer) -> None:
        self._thread = thread
        self._server = server

    @property
    def address(self) -> str:
        """As `ReceiverServer.address`."""
        return self._server.address

    def register_channel(self, channel_id: str, **settings: Any) -> BlockingReceiverChannel:
        """As `ReceiverServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, **settings)
        return BlockingReceiverChannel(self._thread, channel)


class _Services:
    """What this process has started of the two."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: _Thread | None = None
        self._sender: SenderServer | None = None
        self._receiver: ReceiverServer | None = None
        self._listen = ""

    def _started(self) -> _Thread:
        if self._thread is None:
            self._thread = _Thread()
            atexit.register(self.leave)
        return self._thread

    def sender(self) -> BlockingSenderServer:
        with self._lock:
            thread = self._started()
            if self._sender is None:
                self._sender = thread.wait(SenderServer().__aenter__())
            return BlockingSenderServer(thread, self._sender)

    def receiver(self, address: str | None) -> BlockingReceiverServer:
        with self._lock:
            thread = self._started()
            if self._receiver is None:
                listen = address or DEFAULT_LISTEN
                self._receiver = thread.wait(ReceiverServer(listen).__aenter__())
                self._listen = listen
            elif address not in (None, self._listen, self._receiver.address):
                raise NetChannelError(
                    f"this process receives at {self._receiver.address} already, not at {address}: the first call "
                    f"of receiver_server() binds; start a ReceiverServer of your own for another address"
                )
            return BlockingReceiverServer(thread, self._receiver)

    def leave(self) -> None:
        """Leave both servers, each within its ``leave_s``, and stop the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            for server in (self._sender, self._receiver):
                if server is not None:
                    thread.wait(server.__aexit__(None, None, None))
            self._sender = self._receiver = None
            thread.stop()


_services = _Services()


def _start_anew() -> None:
    global _services  # noqa: PLW0603 - the process' one instance; a child has no thread to serve the parent's
    _services = _Services()


os.register_at_fork(after_in_child=_start_anew)


def sender_server() -> BlockingSenderServer:
    """The process-wide sender, started by the first call."""
    return _services.sender()


def receiver_server(address: str | None = None) -> BlockingReceiverServer:
    """The process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    Raises:
        NetChannelError: it is bound to another address already.
        OSError: the address cannot be bound.
    """
    return _services.receiver(address)
