"""A circuit over HTTP, at an address, in the process and on the loop of its coordinator."""

from __future__ import annotations

import asyncio
import socket
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from nebuli.circuits.circuit_calls import CircuitCalls
from nebuli.circuits.served_run import CannotServe, failure_told
from nebuli.http.circuit_proxy import CircuitProxy
from nebuli.http.collections.served_stores import ServedStores
from nebuli.http.http_routes import app, app_of_stores, app_of_views
from nebuli.http.output_streams import BREAK_OFF
from nebuli.http.request_guard import Guard
from nebuli.rpc.trust import NO_TRUST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Mapping
    from pathlib import Path
    from ssl import SSLContext, SSLObject, SSLSocket

    from starlette.types import ASGIApp

    import netchannel
    from nebuli.http.views.view_places import ViewPlaces
    from nebuli.rpc.trust import Trust
    from nebuli.steps.coordinator.circuit_run import AnyRun
    from nebuli.store.store_url import StorePlace

CONNECTIONS = 256
NO_STORES: Mapping[str, StorePlace] = {}
_HEAD_BYTES = 1 << 16
_HEAD_S = 10.0
"""Within so long a request has begun on a connection, or it is closed."""
_IDLE_S = 30.0
_GRACE_S = 2.0
"""How long readers of outputs have to reach their ends."""
_BACKLOG = 128
_LINGER_S = 30.0
"""How long an abandoned client may take bytes that were written already."""


@asynccontextmanager
async def served_over_http(
    run: AnyRun, address: str, trust: Trust = NO_TRUST, stores: Mapping[str, StorePlace] = NO_STORES
) -> AsyncIterator[str]:
    """Serve a run at an address, as long as the context is: its URL, as port 0 takes any that is free.

    With it the collections of ``stores``, by their names. Left when the run is over, what its outputs have is given
    out first. Raises CannotServe, CertificateError.
    """
    calls, served = CircuitCalls(run), ServedStores(stores)
    async with _serving(app(calls, served), address, trust) as url, served, _ending(run, calls):
        yield url


@asynccontextmanager
async def collections_over_http(
    stores: Mapping[str, StorePlace], address: str, trust: Trust = NO_TRUST
) -> AsyncIterator[str]:
    """Serve the collections of stores alone, as long as the context is: the URL.

    Raises CannotServe, CertificateError; StorageError where one cannot be opened.
    """
    served = ServedStores(stores)
    async with _serving(app_of_stores(served), address, trust) as url, served:
        for name in served.names:
            await served.of(name)
        yield url


@asynccontextmanager
async def views_over_http(places: ViewPlaces, address: str, trust: Trust = NO_TRUST) -> AsyncIterator[str]:
    """Serve views, also those that are added meanwhile, as long as the context is: the URL.

    Raises CannotServe, CertificateError.
    """
    async with _serving(app_of_views(places), address, trust) as url, places:
        yield url


@asynccontextmanager
async def served_over_http_to_worker(run: AnyRun, path: Path) -> AsyncIterator[None]:
    """The same at a socket of this machine, for a worker that passes requests on, and has authenticated the client."""
    listening = _listening_to_worker(path)
    calls = CircuitCalls(run)
    guarded = Guard(app(calls, ServedStores(NO_STORES)), hosts=None, secret=None)
    async with _running(_server(guarded, NO_TRUST), listening), _ending(run, calls):
        yield


@asynccontextmanager
async def passing_on(
    socket_of: Callable[[str], Path], address: str, trust: Trust = NO_TRUST
) -> AsyncIterator[str]:
    """Serve several circuits at an address, whose processes listen at sockets: the URL above theirs.

    Raises as `served_over_http`; see `CircuitProxy`.
    """
    async with _serving(CircuitProxy(socket_of), address, trust) as url:
        yield url


@asynccontextmanager
async def _serving(asked: ASGIApp, address: str, trust: Trust) -> AsyncIterator[str]:
    host, _, port = address.rpartition(":")
    listening = _listening(address, host.strip("[]"), int(port))
    bound = listening.getsockname()[1]
    is_local = trust.tls is None and trust.secret is None
    guarded = Guard(asked, hosts=_local_names(host, bound) if is_local else None, secret=trust.secret)
    async with _running(_server(guarded, trust), listening):
        yield f"{'http' if trust.tls is None else 'https'}://{host}:{bound}"


@asynccontextmanager
async def _ending(run: AnyRun, calls: CircuitCalls) -> AsyncIterator[None]:
    """Where the run is over, what its outputs have is given out to their ends."""
    try:
        async with failure_told(run):
            yield
        if run.over is not None:
            calls.end(run.over)
    finally:
        await calls.close()


@asynccontextmanager
async def _running(server: _Server, listening: socket.socket) -> AsyncIterator[None]:
    serving = asyncio.create_task(server.serve(sockets=[listening]))
    try:
        yield
    finally:
        server.should_exit = True
        await asyncio.wait([serving], timeout=2 * _GRACE_S)
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        listening.close()


def _listening_to_worker(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)  # a process that was killed has left its own
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    found.bind(str(path))
    path.chmod(0o600)
    found.listen(_BACKLOG)
    return found


def _listening(address: str, host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        found = socket.socket(family, kind, protocol)
    except OSError as error:
        raise CannotServe(f"--http {address} cannot be bound: {error}") from error
    try:
        found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        found.bind(where)
        found.listen(_BACKLOG)
    except OSError as error:
        found.close()
        raise CannotServe(
            f"--http {address} cannot be bound: {error}; stop the process that listens there, or choose "
            f"another port"
        ) from error
    return found


def _local_names(host: str, port: int) -> set[str]:
    """Return the host names that a request on this machine may have."""
    names = {host.lower(), "localhost", "127.0.0.1", "[::1]"}
    return {f"{name}:{port}" for name in names} | (names if port == 80 else set())


def _server(guarded: Guard, trust: Trust) -> _Server:
    config = uvicorn.Config(
        guarded,
        http=_Impatient,
        ws="none",
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=int(_IDLE_S),
        timeout_graceful_shutdown=int(_GRACE_S),
        h11_max_incomplete_event_size=_HEAD_BYTES,
    )
    config.load()
    if trust.tls is not None:
        config.ssl = _context(trust.tls)
    return _Server(config)


def _context(tls: netchannel.Tls) -> SSLContext:
    """Certificates on both sides; files that change are read again for the next connection."""
    from netchannel.tls import Credentials

    credentials = Credentials(tls, "receiver")
    found = credentials.context()

    def renew(connection: SSLSocket | SSLObject, name: str | None, context: SSLContext) -> None:
        current = credentials.context()
        if current is not context:
            connection.context = current

    found.sni_callback = renew
    return found


class _Server(uvicorn.Server):
    """Leaves signals to the process that runs the circuit."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Nothing."""
        yield


class _Impatient(H11Protocol):
    """Closes a connection on which no request begins, and one that nothing of an answer is taken from."""

    _patience: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Wait for a request, and not forever."""
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        """Wait until all of its head is there, and not forever."""
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            scope: Any = self.cycle.scope  # whose type has no keys of others
            scope[BREAK_OFF] = self._break_off
            self._forget()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no more."""
        self._forget()
        super().connection_lost(exc)

    def _break_off(self, last_word: bytes) -> None:
        """End an answer in the middle; one without a last word has no end, which its reader notices."""
        self.cycle.disconnected = True
        if last_word:
            for event in (h11.Data(data=last_word), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()  # what is there already is taken yet, or not
        self.loop.call_later(_LINGER_S, self.transport.abort)

    def _wait(self) -> None:
        if self._patience is None:
            self._patience = self.loop.call_later(_HEAD_S, self.transport.close)

    def _forget(self) -> None:
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
