"""Staged groups: held back, committed as a whole and once, through lost connections too."""

from __future__ import annotations

import asyncio
import random
from itertools import chain, count
from typing import TYPE_CHECKING

import pytest

from netchannel import (
    AttemptLost,
    BufferPolicy,
    EpochRegressed,
    Group,
    GroupClient,
    ReceiverServer,
    SenderServer,
    StagingPolicy,
)

from .channels import batch, body_of
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from pathlib import Path

    from netchannel import Sealed

CUTS = 50


async def seal(sender: SenderServer, to: str, values: list[bytes], *, epoch: int, partition: int) -> Sealed:
    """An attempt with ``values``; a few messages are under way at a time."""
    outbox = sender.register_attempt(
        "c", to, Group("app", epoch, partition), codec="bytes", buffer=BufferPolicy(max_messages=20)
    )
    for value in values:
        await outbox.send(value)
    return await outbox.seal()


class StagedGroups(Suite):
    """Tests that what is published is what was committed."""

    async def test_a_group_is_there_from_its_commit_on(
        self, receiver: ReceiverServer, sender: SenderServer, tmp_path: Path
    ) -> None:
        """In partition order, once; not an attempt that lost."""
        inbox = receiver.register_staged_channel("c", StagingPolicy(tmp_path))
        batches = [batch(10 * partition, rows) for partition in range(3) for rows in (1, 60_000)]
        sealed: list[Sealed] = []
        for attempt in range(6):
            outbox = sender.register_attempt("c", receiver.address, Group("app", 3, 2 - attempt // 2))
            await outbox.send_many(batches[4 - attempt // 2 * 2 :][:2])
            sealed.append(await outbox.seal())
        async with GroupClient(receiver.address, "c", timing=QUICK) as client:
            assert await client.last_epoch("app") is None
            assert inbox.statistics().received == 0
            assert await client.commit("app", 3, sealed[::2])
            assert not await client.commit("app", 3, sealed[::2])
            with pytest.raises(EpochRegressed):
                await client.commit("app", 2, [])
            with pytest.raises(AttemptLost):
                await client.commit("app", 4, sealed[1::2])
            assert await client.commit("app", 4, [], end=True)
        assert [each async for each in inbox] == batches

    async def test_groups_through_cuts_at_random_bytes(self, address: str, tmp_path: Path) -> None:
        """All connections are cut, also those for commits."""
        draw = random.Random(5)  # noqa: S311 - faults that can be repeated
        lives = (1 + int(draw.expovariate(1 / 10_000)) for _ in count())
        async with (
            FaultyTransport(lives=lives) as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
            GroupClient(receiver.address, "c", timing=QUICK) as client,
        ):
            inbox = receiver.register_staged_channel("c", StagingPolicy(tmp_path), codec="bytes")
            sent: list[list[bytes]] = []
            for epoch in count():
                last = network.cuts >= CUTS
                if last:
                    network.calm()
                groups = [
                    [body_of(epoch + partition + number) for number in range(30)] for partition in (0, 1)
                ]
                winners = await asyncio.gather(
                    *(
                        seal(sender, receiver.address, values, epoch=epoch, partition=partition)
                        for partition, values in enumerate(groups)
                    )
                )
                sent += groups
                await client.commit("app", epoch, winners, end=last)
                if last:
                    break
            assert [bytes(body) async for body in inbox] == list(chain(*sent))
