"""What a client makes of a worker's answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import grpc
import pytest

from nebuli.rpc import worker_client
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.worker_client import WorkerClient, WorkerRefused, WorkerUnreachable
from nebuli.rpc.worker_pb2_grpc import WorkerServicer, add_WorkerServicer_to_server


class Faulty(WorkerServicer):
    async def Status(self, request: wire.StatusRequest, context: object) -> wire.StatusReply:  # noqa: N802 - gRPC's
        raise ZeroDivisionError("nobody has thought of it")


class Saving(WorkerServicer):
    """Makes a checkpoint when it has said ``looks`` times how it is; None: it does not say so, and makes none."""

    def __init__(self, looks: int | None) -> None:
        self._looks = looks
        self._seen = 0
        self._made = asyncio.Event()

    async def Checkpoint(self, request: wire.CheckpointRequest, context: object) -> wire.CheckpointReply:  # noqa: N802 - gRPC's
        await self._made.wait()
        return wire.CheckpointReply(step=7)

    async def Status(self, request: wire.StatusRequest, context: object) -> wire.StatusReply:  # noqa: N802 - gRPC's
        self._seen += 1
        if self._looks is None:
            await asyncio.Event().wait()
        if self._seen == self._looks:
            self._made.set()
        return wire.StatusReply()


@contextlib.asynccontextmanager
async def asking(servicer: WorkerServicer) -> AsyncIterator[WorkerClient]:
    server = grpc.aio.server()
    add_WorkerServicer_to_server(servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with WorkerClient("here:1", address) as client:
            yield client
    finally:
        await server.stop(None)


async def test_a_worker_with_a_fault_is_not_taken_for_one_that_is_away() -> None:
    """Who is away is asked again and again; this one answers."""
    async with asking(Faulty()) as client:
        with pytest.raises(
            WorkerRefused, match=r"worker here:1 at 127.* cannot execute the call: .*thought of it"
        ):
            await client.statuses()


async def test_a_checkpoint_takes_as_long_as_it_takes_while_its_worker_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_client, "_LOOK_S", 0.01)
    async with asking(Saving(looks=20)) as client:
        assert await client.checkpoint("query/coordinator") == 7


async def test_a_checkpoint_is_not_waited_for_when_its_worker_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(worker_client, "_LOOK_S", 0.01)
    monkeypatch.setattr(worker_client, "_DEADLINE_S", 0.2)
    async with asking(Saving(looks=None)) as client:
        with pytest.raises(WorkerUnreachable, match="worker here:1 does not answer"):
            await client.checkpoint("query/coordinator")
