"""The members of a circuit in one process, each with servers of its own at an address of its own."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any, Self

import pyarrow as pa

from nebuli.steps.member.exchange import Exchange
from netchannel import ReceiverServer, SenderServer, Timing

TIMING = Timing(idle_s=0.01, backoff_limit_s=0.2)
SCHEMA = pa.schema([("sender", pa.int64()), ("round", pa.int64())])


def host(number: int) -> str:
    """The address of a host of its own on this machine."""
    return f"127.100.{number}.1"


def row(sender: int, round_: int) -> pa.RecordBatch:
    """What a member sends in a round."""
    return pa.record_batch([[sender], [round_]], schema=SCHEMA)


def pairs(parts: list[pa.RecordBatch | None]) -> list[tuple[int, int]]:
    """What came, in the order in which it is given out."""
    return [tuple(rows.values()) for part in parts if part is not None for rows in part.to_pylist()]


class Members:
    """``members`` on ``hosts``, in one event loop."""

    def __init__(self, members: int, hosts: int = 1, **receiver: Any) -> None:
        self.count = members
        self.receivers = [
            ReceiverServer(f"{host(number % hosts + 1)}:0", timing=TIMING, **receiver)
            for number in range(members)
        ]
        self.senders = [SenderServer(timing=TIMING) for _ in range(members)]
        self._stack = AsyncExitStack()
        self._tasks: set[asyncio.Task[Any]] = set()

    async def __aenter__(self) -> Self:
        for server in (*self.receivers, *self.senders):
            await self._stack.enter_async_context(server)
        self._tasks = asyncio.all_tasks()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._stack.aclose()

    @property
    def addresses(self) -> list[str]:
        return [receiver.address for receiver in self.receivers]

    def exchange(self, member: int, epoch: int = 1, **settings: Any) -> Exchange:
        """One that is not open yet."""
        servers = self.senders[member], self.receivers[member]
        addresses = settings.pop("addresses", self.addresses)
        return Exchange(*servers, "circuit", epoch, member, addresses, **settings)

    async def opened(self, epoch: int = 1, **settings: Any) -> list[Exchange]:
        """All of them, open."""
        exchanges = [self.exchange(member, epoch, **settings) for member in range(self.count)]
        await asyncio.gather(*(exchange.open(20) for exchange in exchanges))
        return exchanges

    @property
    def channels(self) -> tuple[int, int]:
        """How many there are at the senders, and at the receivers."""
        return (
            sum(len(server.statistics().channels) for server in self.senders),
            sum(len(server.statistics().channels) for server in self.receivers),
        )

    @property
    def left(self) -> list[object]:
        """What is left of exchanges that are over, but for connections, which the servers close when idle."""
        tasks = asyncio.all_tasks() - self._tasks
        channels = [
            each for server in (*self.senders, *self.receivers) for each in server.statistics().channels
        ]
        return [*tasks, *channels]

    async def unconnected(self) -> bool | None:
        """No connection is left."""
        return not any(server.statistics().connections for server in (*self.senders, *self.receivers)) or None
