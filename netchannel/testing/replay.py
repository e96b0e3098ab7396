"""Streams that are kept: read again, followed, acknowledged by name, over connections that hold and that do not."""

from __future__ import annotations

import asyncio
import random
from itertools import count
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from netchannel import (
    BufferPolicy,
    ChannelReader,
    ConsumerFenced,
    Position,
    PositionLost,
    ReceiverServer,
    RetainPolicy,
    SenderServer,
    StreamReplaced,
)

from .channels import body_of
from .deadlines import eventually
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from collections.abc import Iterator

COUNT = 300
CUTS = 50


class Replay(Suite):
    """Channels of ``retain_channel``, at receivers and at senders that listen."""

    @pytest.mark.parametrize("at", ["receiver", "sender"])
    async def test_a_kept_range_is_read_again(self, address: str, at: str) -> None:
        """With equal answers, by several readers at once."""
        async with (
            ReceiverServer(address, timing=QUICK)
            if at == "receiver"
            else SenderServer(address, timing=QUICK) as retainer
        ):
            await self._read_again(retainer)

    async def _read_again(self, retainer: ReceiverServer | SenderServer) -> None:
        draw = random.Random(1)  # noqa: S311 - ranges that can be repeated
        sent = [*map(body_of, range(COUNT)), bytes(3_000_000)]
        async with SenderServer(timing=QUICK) as sender:
            outbox: Any
            if isinstance(retainer, ReceiverServer):
                retainer.retain_channel("c", RetainPolicy(), codec="bytes")
                outbox = sender.register_channel("c", retainer.address, codec="bytes")
            else:
                outbox = retainer.retain_channel("c", RetainPolicy(), codec="bytes")
            await outbox.send_many(sent)
            readers = [ChannelReader(retainer.address, "c", codec="bytes", timing=QUICK) for _ in range(3)]
            async with readers[0], readers[1], readers[2]:

                async def read(reader: ChannelReader) -> None:
                    await reader.heads(beyond=COUNT)
                    for _ in range(10):
                        first = draw.randrange(len(sent))
                        until = draw.randrange(first, len(sent) + 1)
                        found = [bytes(body) async for body in reader.read(first, until)]
                        assert found == sent[first:until]

                await asyncio.gather(*map(read, readers))
                await readers[0].ack("me", len(sent))
                assert (await outbox.close()).acknowledged == len(sent)

    async def test_heads_are_pushed_and_ranges_found(self, address: str) -> None:
        """By rows and by bytes."""
        async with SenderServer(address, timing=QUICK) as sender:
            outbox = sender.retain_channel("c", RetainPolicy())
            async with ChannelReader(sender.address, "c", timing=QUICK) as reader:
                for number in range(20):
                    await outbox.send(pa.record_batch({"n": pa.array([number] * number, pa.int64())}))
                    heads = await reader.heads(beyond=number)
                    assert (heads.head, heads.rows) == (number + 1, number * (number + 1) // 2)
                assert (await reader.locate(0, max_rows=10)).until == 5
                assert (await reader.locate(15, max_rows=1)).until == 16
                found = await reader.locate(4, max_bytes=heads.bytes // 2)
                assert found.bytes <= heads.bytes // 2 < found.bytes + heads.bytes // 10
                assert await reader.schema() == pa.schema([("n", pa.int64())])

    async def test_what_consumers_are_done_with_is_gone(self, address: str) -> None:
        """At the slowest of them; another stream is not read."""
        async with SenderServer(address, timing=QUICK) as sender:
            outbox = sender.retain_channel("c", RetainPolicy(), codec="bytes")
            await outbox.send_many(map(body_of, range(COUNT)))
            async with (
                ChannelReader(sender.address, "c", codec="bytes", timing=QUICK) as one,
                ChannelReader(sender.address, "c", codec="bytes", timing=QUICK) as two,
            ):
                await one.hold("one")
                await two.ack("two", 200)
                await one.ack("one", 100)
                with pytest.raises(ConsumerFenced):
                    await two.ack("one", 150)
                with pytest.raises(PositionLost):
                    await anext(one.read(99, 101))
                with pytest.raises(StreamReplaced):
                    await anext(one.read(Position("another", 100), 101))
                assert [bytes(body) async for body in one.read(100, 102)] == [body_of(100), body_of(101)]

    async def test_a_full_history_holds_the_sender_back(self, address: str) -> None:
        """And all of it comes, once there is room."""
        policy, buffer = RetainPolicy(max_bytes=200_000), BufferPolicy(max_bytes=200_000)
        async with ReceiverServer(address, timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
            kept = receiver.retain_channel("c", policy, codec="bytes", buffer=buffer)
            outbox = sender.register_channel("c", receiver.address, codec="bytes", buffer=buffer)
            sending = asyncio.create_task(outbox.send_many(bytes([n % 256]) * 10_000 for n in range(COUNT)))
            async with ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK) as reader:
                await reader.hold("me")
                await eventually(lambda: outbox.statistics().buffered_bytes > 180_000)
                assert kept.latest.bytes <= 200_000
                done = 0
                while done < COUNT:
                    heads = await reader.heads(beyond=done)
                    bodies = [bytes(body) async for body in reader.read(done, heads.head)]
                    assert bodies == [bytes([n % 256]) * 10_000 for n in range(done, heads.head)]
                    done = heads.head
                    await reader.ack("me", done)
                await sending
                await outbox.close()

    async def test_reading_through_cuts_at_random_bytes(self, address: str) -> None:
        """Connections for requests and reads are cut: every message once, in order."""
        draw = random.Random(5)  # noqa: S311 - faults that can be repeated
        lives: Iterator[int] = (1 + int(draw.expovariate(1 / 30_000)) for _ in count())
        async with (
            FaultyTransport(lives=lives) as network,
            SenderServer(network.at(address), timing=QUICK) as sender,
        ):
            outbox = sender.retain_channel("c", RetainPolicy(), codec="bytes")
            sent = [*map(body_of, range(5 * COUNT))]
            for number in range(0, len(sent), 20):
                await outbox.send_many(sent[number : number + 20])
                await asyncio.sleep(
                    0
                )  # what is sent in one turn of the loop is one frame, and has to get through
            async with ChannelReader(sender.address, "c", codec="bytes", timing=QUICK) as reader:
                while network.cuts < CUTS:
                    number = first = draw.randrange(CUTS, len(sent))
                    async for message in reader.read_messages(first, len(sent)):
                        assert (message.sequence, message.batch) == (number, sent[number])
                        number += 1
                    assert number == len(sent)
                    await reader.ack("me", network.cuts)
                network.calm()
                await reader.ack("me", len(sent))
                await outbox.close()
