"""What a client makes of a worker's answers."""

from __future__ import annotations

import grpc
import pytest

from nebuli.fleet.client import WorkerClient, WorkerRefused
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server


class Faulty(WorkerServicer):
    async def Status(self, request: wire.StatusRequest, context: object) -> wire.StatusReply:  # noqa: N802 - gRPC's
        raise ZeroDivisionError("nobody has thought of it")


async def test_a_worker_with_a_fault_is_not_taken_for_one_that_is_away() -> None:
    """Who is away is asked again and again; this one answers."""
    server = grpc.aio.server()
    add_WorkerServicer_to_server(Faulty(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with WorkerClient("here:1", address) as client:
            with pytest.raises(
                WorkerRefused, match=f"worker here:1 at {address} cannot do it: .*thought of it"
            ):
                await client.statuses()
    finally:
        await server.stop(None)
