"""Staged groups over real connections: held back, committed whole and once, and found again after a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import netchannel
from netchannel import (
    ChannelClosed,
    EndOfChannel,
    EpochRegressed,
    Group,
    GroupClient,
    ReceiverServer,
    Sealed,
    SenderServer,
    StagingPolicy,
)


async def write(
    sender: SenderServer, to: str, values: list[bytes], *, epoch: int = 0, partition: int = 0
) -> Sealed:
    """An attempt with ``values``, sealed."""
    outbox = sender.register_channel("c", to, codec="bytes", group=Group("app", epoch, partition))
    await outbox.send_many(values)
    return await outbox.seal()


def staged(receiver: ReceiverServer, directory: Path, **settings: Any) -> netchannel.ReceiverChannel:
    policy = StagingPolicy(directory, **settings.pop("policy", {}))
    return receiver.register_channel("c", codec="bytes", staging=policy, **settings)


async def read(inbox: netchannel.ReceiverChannel, count: int) -> list[tuple[int, bytes]]:
    messages = [await inbox.recv_message() for _ in range(count)]
    return [(message.sequence, bytes(message.batch)) for message in messages]


async def nothing_to_read(inbox: netchannel.ReceiverChannel) -> bool:
    """All that is committed has been given out, and there is nothing."""
    try:
        async with asyncio.timeout(0.05):
            await inbox.recv()
    except TimeoutError:
        return True
    return False


async def test_a_group_is_invisible_until_its_commit_and_then_whole_in_partition_order(
    sender: SenderServer, address: str, tmp_path: Path
) -> None:
    """CH-STG-1."""
    async with ReceiverServer(address) as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path)
        winners = [
            await write(
                sender, receiver.address, [b"%d.%d" % (partition, i) for i in range(3)], partition=partition
            )
            for partition in (2, 0, 1)
        ]
        assert await nothing_to_read(inbox)
        assert await client.commit("app", 0, winners)
        assert await read(inbox, 9) == [(n, b"%d.%d" % divmod(n, 3)) for n in range(9)]
        assert await nothing_to_read(inbox)
        assert await client.commit("app", 1, [await write(sender, receiver.address, [b"next"], epoch=1)])
        assert await read(inbox, 1) == [(9, b"next")]


async def test_an_epoch_is_committed_once_and_none_below_it(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    """CH-STG-2."""
    inbox = staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        assert await client.last_epoch("app") is None
        winners = [await write(sender, receiver.address, [b"x"], epoch=5)]
        assert await client.commit("app", 5, winners) is True
        assert await client.commit("app", 5, winners) is False
        with pytest.raises(EpochRegressed, match=r"epoch 4 .* below epoch 5"):
            await client.commit("app", 4, [])
        assert await client.last_epoch("app") == 5
        assert await client.commit("another", 4, []) is True
    assert await read(inbox, 1) == [(0, b"x")]
    assert await nothing_to_read(inbox)


async def test_the_end_comes_with_its_group_and_another_stream_after_it(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    inbox = staged(receiver, tmp_path)
    async with GroupClient(receiver.address, "c") as client:
        await client.commit("app", 0, [await write(sender, receiver.address, [b"x"])], end=True)
        with pytest.raises(ChannelClosed, match="has ended"):
            await client.commit("app", 1, [])
        assert [bytes(value) async for value in inbox] == [b"x"]
        with pytest.raises(EndOfChannel):
            await inbox.recv()
        assert await client.commit("app", 0, []) is False
        again = staged(receiver, tmp_path)
        assert again.stream != inbox.stream
        assert await client.commit("app", 0, []) is False
        await client.commit("app", 1, [await write(sender, receiver.address, [b"y"], epoch=1)])
        assert await read(again, 1) == [(0, b"y")]


async def test_what_is_acknowledged_is_deleted_and_a_restart_goes_on_there(
    sender: SenderServer, tmp_path: Path
) -> None:
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path, ack="explicit")
        for epoch in range(3):
            await client.commit(
                "app", epoch, [await write(sender, receiver.address, [b"%d" % epoch] * 2, epoch=epoch)]
            )
        assert len(await read(inbox, 6)) == 6
        await inbox.ack(3)
        stream = inbox.stream
    folder = next(tmp_path.iterdir())
    assert len(list(folder.glob("*.attempt"))) == 2
    async with ReceiverServer() as receiver, GroupClient(receiver.address, "c") as client:
        inbox = staged(receiver, tmp_path, ack="explicit")
        assert inbox.stream == stream
        assert await client.last_epoch("app") == 2
        assert await read(inbox, 3) == [(3, b"1"), (4, b"2"), (5, b"2")]


async def test_batches_come_as_they_were_sent(
    sender: SenderServer, receiver: ReceiverServer, tmp_path: Path
) -> None:
    schema = pa.schema({"n": pa.int64(), "word": pa.dictionary(pa.int32(), pa.string())})
    inbox = receiver.register_channel("c", staging=StagingPolicy(tmp_path))
    sent = []
    winners = []
    for partition in range(2):
        outbox = sender.register_channel("c", receiver.address, group=Group("app", 1, partition))
        for size in (1, 10, 200_000):
            words = pa.array([f"{partition} {n % 3}" for n in range(size)]).dictionary_encode()
            batch = pa.record_batch([pa.array(range(size)), words], schema=schema)
            sent.append(batch)
            await outbox.send(batch, b"note %d" % size)
        winners.append(await outbox.seal())
    assert [(each.count, each.rows) for each in winners] == [(3, 200_011)] * 2
    async with GroupClient(receiver.address, "c") as client:
        await client.commit("app", 1, winners, end=True)
    got = []
    for batch in sent:
        message = await inbox.recv_message()
        assert message.note == b"note %d" % batch.num_rows
        got.append(message.batch)
    assert got == sent
    with pytest.raises(EndOfChannel):
        await inbox.recv()
    assert await inbox.schema() == schema
