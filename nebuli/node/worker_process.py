"""A worker process: its servers, its gRPC service, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import sys
import tempfile
import threading
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import grpc.aio
import uvloop
from grpc_health.v1 import health as health_service
from grpc_health.v1 import health_pb2_grpc as health
from grpc_reflection.v1alpha import reflection

import netchannel
from nebuli.circuits.admission import Admission
from nebuli.circuits.push_limit import SERVER_OPTIONS
from nebuli.circuits.served_run import CannotServe
from nebuli.forking.spawner import Spawner
from nebuli.limits import DEFAULT_MAX_STATE_BYTES
from nebuli.log_output import PACKAGES, stderr_handler
from nebuli.node.data_port import Ports
from nebuli.node.hosted_fragment import Host
from nebuli.node.records import Records
from nebuli.node.service.call_forwarder import CIRCUITS, Forwarding
from nebuli.node.service.observations import Observed
from nebuli.node.service.servicer import Service
from nebuli.node.worker_node import WorkerNode
from nebuli.rpc.conventions import READY_PREFIX
from nebuli.rpc.transport_security import bind, interceptors
from nebuli.rpc.trust import NO_TRUST, Trust
from nebuli.rpc.worker_pb2 import DESCRIPTOR
from nebuli.rpc.worker_pb2_grpc import add_WorkerServicer_to_server
from nebuli.views.view_calls import ADDING, LISTING, added_bytes, listed_bytes

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterator

    from nebuli.store.store_url import StorePlace

__all__ = ["AddressUnusable", "WorkerSettings", "run_worker"]

_STOP_S = 3.0
_EXIT_S = 4.0
"""Seconds after which the process ends, even if peers are not notified."""
_MEMBERS = "members"
"""The socket that fragments' processes come to as members of the node."""
_LONGEST_NAME = 24
"""The longest name of a socket, in bytes, with the separator from its folder."""
_LONGEST_SOCKET_PATH = 103
"""The longest path of a socket, in bytes, on macOS; Linux takes a few bytes more."""
_NO_ADDING = (
    "this is a worker, which has a part of the query only: 'nebuli view add --query ID' adds views to a query on "
    "workers, and 'nebuli list' shows the ids"
)


class AddressUnusable(Exception):
    """An address of the worker cannot be bound; the message names option, address and reason."""


@dataclass(frozen=True, slots=True)
class WorkerSettings:
    """How a worker listens, and what it allows. ``advertise`` is how others reach ``data``, if that differs.

    At ``metrics`` it serves ``/metrics`` for Prometheus, and at ``http`` circuits over HTTP, if these are given.
    ``trust`` is what it shows and expects, on channels and over gRPC. At ``state``, a directory or a URL, it remembers
    its fragments, and takes them up again.
    ``fragment_memory`` is the most memory, in bytes, that a fragment may take; ``max_state_bytes`` is the bound on the
    state of an operator whose plan has none. Fragments' processes are reached at the ``fragment_ports``, the first and
    the last one of a range, and data connections go there too, or to ``data_ports``: a range such as ``40000-40999``,
    or ``ephemeral``.
    """

    data: str
    grpc: str
    advertise: str | None = None
    metrics: str | None = None
    http: str | None = None
    max_state_bytes: int = DEFAULT_MAX_STATE_BYTES
    ends_with_stdin: bool = False
    fragment_ports: tuple[int, int] = (0, 0)
    data_ports: str | None = None
    state: StorePlace | None = None
    fragment_memory: int | None = None
    trust: Trust = NO_TRUST


def run_worker(settings: WorkerSettings, template: socket.socket) -> None:
    """Run a worker until SIGTERM, SIGINT or, if asked for, the end of standard input.

    Processes for its fragments are asked for at ``template``, which `fork_worker` gave. ``AddressUnusable`` or
    ``StateUnusable`` if it cannot start. A fragment that cannot be stopped in time does not keep the process.
    """
    if not uvloop.run(_serve(settings, template)):
        # A thread is stuck, such as writing to a full pipe; leaving by the normal way would wait for it.
        os._exit(1)


async def _serve(settings: WorkerSettings, template: socket.socket) -> bool:
    stop = _stop_requests(ends_with_stdin=settings.ends_with_stdin)
    trust = settings.trust
    async with AsyncExitStack() as stack:
        records = None if settings.state is None else stack.enter_context(Records(settings.state))
        known = [] if records is None else records.load()
        spawner = await stack.enter_async_context(Spawner(template, lambda: os._exit(1)))
        sockets = _sockets(stack, settings.state if isinstance(settings.state, Path) else None)
        members = f"unix:{sockets / _MEMBERS}"
        try:
            server = netchannel.ReceiverServer(
                settings.data,
                advertise=settings.advertise,
                members=members,
                data_ports=settings.data_ports,
                tls=trust.tls,
                secret=trust.secret,
            )
            receiver = await stack.enter_async_context(server)
        except OSError as error:
            raise _unusable("data", settings.data, error) from error
        sender = await stack.enter_async_context(netchannel.SenderServer(tls=trust.tls, secret=trust.secret))
        host = Host(
            spawner,
            receiver,
            sender,
            ports=Ports(settings.data.rpartition(":")[0], *settings.fragment_ports, settings.data_ports),
            node=members,
            trust=trust,
            sockets=sockets,
            memory_bytes=settings.fragment_memory,
            state=settings.state,
            max_state_bytes=settings.max_state_bytes,
            serves_http=settings.http is not None,
        )
        node = WorkerNode(host, records)
        receiver.register_service(LISTING, lambda _: listed_bytes(node.views()))
        receiver.register_service(ADDING, lambda _: added_bytes(why=_NO_ADDING))
        stack.enter_context(_logged_by(node.logs))
        forwarding = await stack.enter_async_context(Forwarding(node, host))
        service = await _grpc_server(
            Service(node, Observed(node, host)), forwarding, settings, receiver.address
        )
        where = f"data={receiver.address} grpc={service.address}"
        if settings.metrics is not None:
            where = f"metrics={_serve_metrics(stack, settings.metrics, node, receiver, sender)} {where}"
        if settings.http is not None:
            where = f"http={await _serve_http(stack, settings.http, node, host)} {where}"
        # After binding all addresses that may be in use, and before the first request for their state.
        await node.take_up(known)
        await service.server.start()
        sys.stderr.write(f"{READY_PREFIX}{where}\n")
        sys.stderr.flush()
        await stop.wait()
        asyncio.get_running_loop().call_later(_EXIT_S, os._exit, 1)
        # First, or a client would get the answer that fragments were stopped on request, and could still register some.
        await service.server.stop(None)
        return await node.shutdown(_STOP_S)


def _sockets(stack: AsyncExitStack, state: Path | None) -> Path:
    """The folder for sockets between this and fragments' processes: the state, if there is one.

    So a kill leaves nothing.
    """
    if state is not None:
        folder = state.resolve()
        if len(os.fsencode(folder)) + _LONGEST_NAME <= _LONGEST_SOCKET_PATH:
            return folder
    return Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="nebuli-")))


def _serve_metrics(
    stack: AsyncExitStack,
    address: str,
    node: WorkerNode,
    receiver: netchannel.ReceiverServer,
    sender: netchannel.SenderServer,
) -> str:
    from nebuli.node.service.metrics import serving

    try:
        return stack.enter_context(serving(address, node, receiver, sender))
    except OSError as error:
        raise _unusable("metrics", address, error) from error


async def _serve_http(stack: AsyncExitStack, address: str, node: WorkerNode, host: Host) -> str:
    try:
        from nebuli.node.service.circuits_over_http import serving
    except ImportError as error:
        raise AddressUnusable(f"--http needs more packages ({error}): pip install 'nebuli[http]'") from None
    try:
        return await stack.enter_async_context(serving(address, node, host))
    except CannotServe as error:
        raise AddressUnusable(str(error)) from error


@contextmanager
def _logged_by(handler: logging.Handler) -> Iterator[None]:
    """Log the packages to ``handler``, from INFO on, and to standard error from the level on that was chosen."""
    loggers = [logging.getLogger(name) for name in PACKAGES]
    said = stderr_handler()
    for logger in loggers:
        logger.setLevel(min(logging.INFO, said.level))
        for each in (handler, said):
            logger.addHandler(each)
    try:
        yield
    finally:
        for logger in loggers:
            for each in (handler, said):
                logger.removeHandler(each)


@dataclass(frozen=True, slots=True)
class _GrpcServer:
    server: grpc.aio.Server
    address: str


async def _grpc_server(
    service: Service, forwarding: Forwarding, settings: WorkerSettings, name: str
) -> _GrpcServer:
    """Return a server that is bound, and not started: callers wait."""
    address, trust = settings.grpc, settings.trust
    host, _, port = address.rpartition(":")
    try:
        # gRPC does not report why it cannot bind; asking the system first does.
        probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, host.strip("[]"), int(port))
    except OSError as error:
        raise _unusable("grpc", address, error) from error
    probe.close()
    await probe.wait_closed()
    server = grpc.aio.server(
        options=SERVER_OPTIONS,
        interceptors=[Admission(), *interceptors(name, trust, but=CIRCUITS)],
    )
    add_WorkerServicer_to_server(service, server)
    server.add_generic_rpc_handlers((forwarding,))
    health.add_HealthServicer_to_server(health_service.aio.HealthServicer(), server)
    names = [
        DESCRIPTOR.services_by_name["Worker"].full_name,
        health_service.SERVICE_NAME,
        reflection.SERVICE_NAME,
    ]
    reflection.enable_server_reflection(names, server)
    try:
        bound = bind(server, address, trust)
    except RuntimeError as error:  # another process took it meanwhile, or this one has no descriptor left
        raise _unusable("grpc", address, error) from error
    return _GrpcServer(server, f"{host}:{bound}")


def _stop_requests(*, ends_with_stdin: bool) -> asyncio.Event:
    """An event that is set once the process is asked to end."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if ends_with_stdin:
        # A thread, since not every standard input can be waited for by an event loop.
        threading.Thread(target=_drain_stdin, args=(loop, stop), name="stdin", daemon=True).start()
    return stop


def _drain_stdin(loop: asyncio.AbstractEventLoop, stop: asyncio.Event) -> None:
    while os.read(sys.stdin.fileno(), 4096):
        pass
    if not loop.is_closed():
        loop.call_soon_threadsafe(stop.set)


def _unusable(option: str, address: str, error: OSError | RuntimeError) -> AddressUnusable:
    if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
        return AddressUnusable(
            f"--{option} {address}: the port is in use; stop the process that listens there, or choose "
            f"another"
        )
    return AddressUnusable(
        f"--{option} {address} cannot be bound: {getattr(error, 'strerror', None) or error}"
    )
