"""What the coordinator of a circuit asks of workers that know nothing of a member any more."""

from __future__ import annotations

import asyncio
from typing import Any, Self

import pytest

from nebuli.node.placed.member_workers import MemberWorkers
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.member_places import MemberPlace
from nebuli.rpc.trust import NO_TRUST
from nebuli.rpc.worker_client import WorkerRefused


class Forgetful:
    """A client of a worker that was killed behind the record of a member, and before its store was gone."""

    def __init__(self) -> None:
        self.unregistered: list[str] = []

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        return

    async def stop(self, id_: str, *, at_once: bool) -> None:
        """There is none."""
        raise unknown(id_)

    async def unregister(self, id_: str) -> None:
        """What there is of its store is gone when this is raised."""
        self.unregistered.append(id_)
        raise unknown(id_)


def unknown(id_: str) -> WorkerRefused:
    return WorkerRefused(wire.Refusal(reason=wire.Refusal.REASON_UNKNOWN_ID, message=f"no fragment {id_}"))


async def test_what_a_worker_knows_no_more_is_unregistered_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    client = Forgetful()

    def clients(*_: Any) -> Forgetful:
        return client

    monkeypatch.setattr(MemberWorkers, "_client", clients)
    async with asyncio.timeout(60):
        await MemberWorkers(NO_TRUST).forget(MemberPlace(node="n:1", grpc="n:2", id="gone"))
    assert client.unregistered == ["gone"]
