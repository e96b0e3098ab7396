"""A run that is called from outside: its service, at an address."""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from nebuli.circuits.admission import Admission
from nebuli.circuits.circuit_calls import CircuitCalls
from nebuli.circuits.circuit_service import CircuitService
from nebuli.circuits.circuit_trust import interceptors
from nebuli.circuits.push_limit import SERVER_OPTIONS, WAITING_BYTES
from nebuli.connectors.errors import RowsUnfit
from nebuli.rpc.circuit_pb2_grpc import add_CircuitServicer_to_server
from nebuli.rpc.transport_security import bind
from nebuli.rpc.trust import NO_TRUST
from nebuli.steps.protocol.errors import MemberFailed

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from nebuli.rpc.trust import Trust
    from nebuli.steps.coordinator.circuit_run import AnyRun

_GRACE_S = 2.0
"""How long readers of outputs have to reach their ends."""

TELL_S = 3.0
"""How long callers get the reason, if rows prevent a run from continuing: it has then ended."""


class CannotServe(OSError):
    """The address cannot be served; the message has the reason."""


@asynccontextmanager
async def served(
    run: AnyRun, address: str, trust: Trust = NO_TRUST, *, waiting_bytes: int = WAITING_BYTES
) -> AsyncIterator[str]:
    """Serve a run at an address, as long as the context is; which address, as port 0 takes any that is free.

    Left when the run is over, what its outputs have is given out first. So many bytes of pushes wait at once. Raises
    CannotServe, CertificateError.
    """
    host, _, port = address.rpartition(":")
    await _check_free(address, host.strip("[]"), int(port))
    server = _server(waiting_bytes, *interceptors(trust))
    try:
        bound = bind(server, address, trust)
    except RuntimeError as error:  # another process took it meanwhile, or this one has no descriptor left
        raise CannotServe(f"--serve {address} cannot be bound: {error}") from error
    async with _answering(server, run):
        yield f"{host}:{bound}"


@asynccontextmanager
async def served_to_worker(run: AnyRun, socket: Path) -> AsyncIterator[None]:
    """The same at a socket of this machine, for a worker that passes calls on, and has authenticated the caller."""
    _remove(socket)
    server = _server(WAITING_BYTES)
    server.add_insecure_port(f"unix:{socket}")
    async with _answering(server, run):
        yield


def _remove(socket: Path) -> None:
    """Make way: a process that was killed has left its own."""
    socket.unlink(missing_ok=True)


def _server(waiting_bytes: int, *asking: grpc.aio.ServerInterceptor) -> grpc.aio.Server:
    return grpc.aio.server(options=SERVER_OPTIONS, interceptors=[Admission(waiting_bytes), *asking])


@asynccontextmanager
async def _answering(server: grpc.aio.Server, run: AnyRun) -> AsyncIterator[None]:
    calls = CircuitCalls(run)
    add_CircuitServicer_to_server(CircuitService(calls), server)
    await server.start()
    try:
        async with failure_told(run):
            yield
        if run.over is not None:
            calls.end(run.over)
            await server.stop(_GRACE_S)
    finally:
        await server.stop(None)
        await calls.close()


@asynccontextmanager
async def failure_told(run: AnyRun) -> AsyncIterator[None]:
    """If rows prevent the run from continuing, answer its callers with the reason for a while."""
    try:
        yield
    except (MemberFailed, RowsUnfit) as error:
        if isinstance(error, RowsUnfit) or error.of_input:
            answering, run.on_failure = run.on_failure, []
            for fail in answering:
                fail(str(error))
            if answering:
                await asyncio.sleep(TELL_S)
        raise


async def _check_free(address: str, host: str, port: int) -> None:
    """Ask the system, as gRPC does not report why it cannot bind. Raises CannotServe."""
    try:
        probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise CannotServe(
                f"--serve {address}: the port is in use; stop the process that listens there, or choose "
                f"another"
            ) from None
        raise CannotServe(f"--serve {address} cannot be bound: {error}") from error
    probe.close()
    await probe.wait_closed()
