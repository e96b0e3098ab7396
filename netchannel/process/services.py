"""The process-wide services: a sender, a receiver and clients, on a background thread with a uvloop of its own.

The thread is started by the first call and stopped, after leaving both servers, when the interpreter exits. A
forked child closes the servers that it inherited and starts its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import uvloop

from netchannel.errors import ChannelClosed, NetChannelError
from netchannel.servers.call_client import CallClient
from netchannel.servers.client import Client
from netchannel.servers.receiver import MESSAGE_LIMIT, ReceiverServer
from netchannel.servers.sender import SenderServer
from netchannel.transports.host_memory import SHARED_MEMORY

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from netchannel.tls import Tls

T = TypeVar("T")

DEFAULT_LISTEN = "127.0.0.1:0"


class ServiceThread:
    """An event loop on a thread of its own."""

    def __init__(self) -> None:
        self._loop = uvloop.new_event_loop()
        self._process = os.getpid()
        self._left = False
        self._thread = threading.Thread(target=self._run, name="netchannel", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def wait(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> T:
        """Run ``coroutine`` there and wait for it here.

        An interrupt here cancels it there; if it was done already, ``undo`` is called there with its result.
        """
        future = self._submit(coroutine, undo)
        try:
            return future.result()
        except BaseException:
            self._take_back(future, undo)
            raise

    async def run(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], None] | None = None) -> T:
        """`wait` for coroutines of other loops; cancelling counts as an interrupt."""
        future = self._submit(coroutine, undo)
        waiting = asyncio.shield(asyncio.wrap_future(future))
        try:
            return await waiting
        except asyncio.CancelledError:
            if waiting.done() and not waiting.cancelled():
                waiting.exception()  # or asyncio would log that nothing has asked for it
            self._take_back(future, undo)
            raise

    def _submit(self, coroutine: Coroutine[Any, Any, T], undo: Callable[[T], None] | None) -> Future[T]:
        future: Future[T] = Future()

        def start() -> None:
            if (
                future.cancelled()
            ):  # else it might take a message, which would be back after the next call has looked
                coroutine.close()
                return
            task = self._loop.create_task(coroutine)
            task.add_done_callback(lambda task: _hand_over(task, future, undo))
            future.add_done_callback(lambda _: self._loop.call_soon_threadsafe(task.cancel))

        try:
            self._check()
        except NetChannelError:
            coroutine.close()
            raise
        self._loop.call_soon_threadsafe(start)
        return future

    def _check(self) -> None:
        """Raise if the caller would wait without end, as nothing would answer."""
        if os.getpid() != self._process:
            raise NetChannelError(
                f"this object belongs to process {self._process}, and its thread does not exist in process "
                f"{os.getpid()}, a fork of it: call sender_server() and receiver_server() again in the fork"
            )
        if self._left:
            raise ChannelClosed("the process-wide services are closed: the interpreter is exiting")
        if threading.current_thread() is self._thread:
            raise NetChannelError(
                "the process-wide services were called from their own thread, e.g. from a handler of log records, "
                "and the call would wait for itself: make the call from another thread"
            )

    def _take_back(self, future: Future[T], undo: Callable[[T], None] | None) -> None:
        # Once it runs, the result is there or a moment away: `_hand_over` sets both together.
        if not future.cancel() and undo is not None and future.exception() is None:
            self._loop.call_soon_threadsafe(undo, future.result())

    def call(self, function: Callable[..., T], *args: Any, **settings: Any) -> T:
        """Call ``function`` there and wait for its result here."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(function(*args, **settings))
            except Exception as error:  # noqa: BLE001 - it is raised where the caller waits
                future.set_exception(error)

        self._check()
        self._loop.call_soon_threadsafe(run)
        return future.result()

    def tell(self, function: Callable[..., object], *args: Any) -> None:
        """Call ``function`` there and do not wait; if the thread has ended, there is nothing to do."""
        if os.getpid() == self._process and not self._left:
            self._loop.call_soon_threadsafe(function, *args)

    def stop(self) -> None:
        """Stop the loop and the thread."""
        self._left = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


def _hand_over(task: asyncio.Task[T], future: Future[T], undo: Callable[[T], None] | None) -> None:
    """Give the result to the waiting task; back where it came from if it no longer waits."""
    if not future.set_running_or_notify_cancel():
        if undo is not None and not task.cancelled() and task.exception() is None:
            undo(task.result())
    elif task.cancelled():
        future.set_exception(asyncio.CancelledError())
    elif (error := task.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(task.result())


class Trust(NamedTuple):
    """The secret and TLS that the other sides of a client must have."""

    secret: str | None = None
    tls: Tls | None = None


class Settings(NamedTuple):
    """The settings of a server in a call.

    For omitted ones (None) the first call has the default, a later one the current value.
    """

    secret: str | None = None
    tls: Tls | None = None
    message_limit: int | None = None
    shared_memory: int | None = None

    def given(self) -> dict[str, Any]:
        """Those that are not left out, by name."""
        return {name: value for name, value in self._asdict().items() if value is not None}


DEFAULTS = Settings(message_limit=MESSAGE_LIMIT, shared_memory=SHARED_MEMORY)


class Services:
    """The servers that this process has started."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: ServiceThread | None = None
        self._sender: SenderServer | None = None
        self._receiver: ReceiverServer | None = None
        self._clients: dict[Trust, Client] = {}
        self._calling: dict[Trust, CallClient] = {}
        self._listen = ""
        self._settings: dict[str, Settings] = {}

    def _started(self) -> ServiceThread:
        if self._thread is None:
            self._thread = ServiceThread()
            atexit.register(self.leave)
        return self._thread

    def sender(self, settings: Settings) -> tuple[ServiceThread, SenderServer]:
        """The sender, started if it is not. Raises NetChannelError if it has other settings."""
        with self._lock:
            thread = self._started()
            if self._sender is None:
                server = SenderServer(**settings.given())
                self._sender = thread.wait(server.__aenter__())
                self._settings["sender"] = DEFAULTS._replace(**settings.given())
            self._check("sender", settings)
            return thread, self._sender

    def _check(self, role: str, settings: Settings) -> None:
        used = self._settings[role]._asdict()
        for name, given in settings.given().items():
            if given != used[name]:
                raise NetChannelError(
                    f"this process' {role} is already running, "
                    f"{'without a' if used[name] is None else 'with another'} {name}: the first call of "
                    f"{role}_server() determines the {name}; for another {name}, start your own server"
                )

    def receiver(self, address: str | None, settings: Settings) -> tuple[ServiceThread, ReceiverServer]:
        """The receiver, bound if it is not. Raises NetChannelError if it is bound elsewhere, or as `sender` does."""
        with self._lock:
            thread = self._started()
            if self._receiver is None:
                listen = address or DEFAULT_LISTEN
                server = ReceiverServer(listen, **settings.given())
                self._receiver = thread.wait(server.__aenter__())
                self._listen = listen
                self._settings["receiver"] = DEFAULTS._replace(**settings.given())
            elif address not in (None, self._listen, self._receiver.address):
                raise NetChannelError(
                    f"this process already receives at {self._receiver.address}, not at {address}: the first call of "
                    f"receiver_server() determines the address; for another address, start your own ReceiverServer"
                )
            self._check("receiver", settings)
            return thread, self._receiver

    def client(self, trust: Trust) -> tuple[ServiceThread, Client]:
        """The client of receivers that have this secret and TLS, started if it is not."""
        with self._lock:
            thread = self._started()
            client = self._clients.get(trust)
            if client is None:
                client = Client(secret=trust.secret, tls=trust.tls)
                self._clients[trust] = thread.wait(client.__aenter__())
            return thread, client

    def call_client(self, trust: Trust) -> tuple[ServiceThread, CallClient]:
        """The call client of receivers that have this secret and TLS, started if it is not."""
        with self._lock:
            thread = self._started()
            client = self._calling.get(trust)
            if client is None:
                client = CallClient(secret=trust.secret, tls=trust.tls)
                self._calling[trust] = thread.wait(client.__aenter__())
            return thread, client

    def leave(self) -> None:
        """Leave both servers, each within its ``leave_s``, and stop the thread."""
        with self._lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            for server in self._all():
                thread.wait(server.__aexit__(None, None, None))
            self._sender = self._receiver = None
            self._clients.clear()
            self._calling.clear()
            thread.stop()

    def close_inherited(self) -> None:
        """Close the parent's sockets in a forked child, so that only the parent holds them."""
        for server in self._all():
            for descriptor in server.descriptors():
                os.close(descriptor)

    def _all(self) -> list[SenderServer | ReceiverServer | Client | CallClient]:
        servers = [server for server in (self._sender, self._receiver) if server is not None]
        return [*self._clients.values(), *self._calling.values(), *servers]


services = Services()
_inherited: list[Services] = []
"""Services that are never collected: closing their event loops in a child would close what it has opened since."""


def _start_anew() -> None:
    global services  # noqa: PLW0603 - the process' one instance; a child has no thread to serve the parent's
    services.close_inherited()
    _inherited.append(services)
    services = Services()


os.register_at_fork(after_in_child=_start_anew)
