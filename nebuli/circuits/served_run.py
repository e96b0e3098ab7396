"""A run that is called from outside: its service, at an address."""

from __future__ import annotations

import asyncio
import errno
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from nebuli.circuits.circuit_service import CircuitService
from nebuli.circuits.circuit_trust import interceptors
from nebuli.circuits.push_limit import MESSAGE_BYTES
from nebuli.coordinator.lockstep import Phase
from nebuli.rpc.circuit_pb2_grpc import add_CircuitServicer_to_server
from nebuli.rpc.secured import bind
from nebuli.rpc.trust import NO_TRUST

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.members.local_run import LocalRun
    from nebuli.rpc.trust import Trust

_GRACE_S = 2.0
"""How long those who read outputs have to come to their ends."""


@asynccontextmanager
async def served(run: LocalRun, address: str, trust: Trust = NO_TRUST) -> AsyncIterator[str]:
    """Serve a run at an address, as long as the context is; which address, as port 0 takes any that is free.

    Left when the run has been shut down, what its outputs have is given out first. Raises OSError, CertificateError.
    """
    host, _, port = address.rpartition(":")
    await _check_free(address, host.strip("[]"), int(port))
    options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", MESSAGE_BYTES)]
    server = grpc.aio.server(options=options, interceptors=interceptors(trust))
    service = CircuitService(run)
    add_CircuitServicer_to_server(service, server)
    try:
        bound = bind(server, address, trust)
    except RuntimeError as error:  # somebody took it meanwhile, or the process has no descriptor left
        raise OSError(f"--serve {address} cannot be bound: {error}") from error
    await server.start()
    try:
        yield f"{host}:{bound}"
        if run.coordinator.phase is Phase.STOPPED:
            service.end(run.coordinator.next_step)
            await server.stop(_GRACE_S)
    finally:
        await server.stop(None)


async def _check_free(address: str, host: str, port: int) -> None:
    """Ask the system, as gRPC says neither why it cannot bind, nor only that. Raises OSError."""
    try:
        probe = await asyncio.get_running_loop().create_server(asyncio.Protocol, host, port)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise OSError(
                f"--serve {address}: the port is in use; stop what listens there, or choose another"
            ) from None
        raise OSError(f"--serve {address} cannot be bound: {error}") from error
    probe.close()
    await probe.wait_closed()
