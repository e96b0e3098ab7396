"""Entering a circuit that is not there yet, by both faces: it is waited for, and then it is said what to do."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc.aio
import pytest

import nebuli
import nebuli.blocking
from nebuli.circuits import CircuitDenied, CircuitUnreachable
from nebuli.rpc import circuit_pb2 as wire
from nebuli.rpc.circuit_pb2_grpc import CircuitServicer, add_CircuitServicer_to_server
from nebuli.rpc.transport_security import interceptors
from nebuli.rpc.trust import NO_TRUST, Trust
from tests.support.ports import free_addresses


class Described(CircuitServicer):
    """A circuit without inputs and outputs."""

    async def Describe(self, request: Any, context: Any) -> wire.DescribeReply:  # noqa: N802 - gRPC's
        return wire.DescribeReply()


async def started(address: str, trust: Trust = NO_TRUST) -> grpc.aio.Server:
    server = grpc.aio.server(interceptors=interceptors("circuit", trust))
    add_CircuitServicer_to_server(Described(), server)
    server.add_insecure_port(address)
    await server.start()
    return server


def entered(address: str) -> None:
    with nebuli.blocking.Circuit(address, deadline_s=60.0):
        pass


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
async def test_a_circuit_that_comes_later_is_waited_for(face: str) -> None:
    (address,) = free_addresses(1)

    async def enter() -> None:
        async with nebuli.Circuit(address, deadline_s=60.0):
            pass

    entering = asyncio.ensure_future(enter() if face == "asyncio" else asyncio.to_thread(entered, address))
    await asyncio.wait((entering,), timeout=0.5)
    assert not entering.done()
    server = await started(address)
    try:
        await entering
    finally:
        await server.stop(None)


async def test_one_that_does_not_come_is_an_error_at_the_deadline() -> None:
    (address,) = free_addresses(1)
    began = time.monotonic()
    with pytest.raises(
        CircuitUnreachable, match=f"check that 'nebuli run --stepped --serve {address}' is running, and"
    ):
        await nebuli.Circuit(address, deadline_s=0.5).__aenter__()
    assert time.monotonic() - began > 0.3  # and a pause less


async def test_one_that_wants_another_secret_is_not_waited_for() -> None:
    (address,) = free_addresses(1)
    server = await started(address, Trust(secret="correct horse"))
    try:
        async with asyncio.timeout(30):
            with pytest.raises(CircuitDenied, match="give Circuit the secret of the circuit's topology"):
                await nebuli.Circuit(address, secret="wrong", deadline_s=300.0).__aenter__()
    finally:
        await server.stop(None)
