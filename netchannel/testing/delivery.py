"""Delivery: numbers, notes, schemas, dictionaries and sizes; and acknowledgements."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import netchannel
from netchannel import BufferPolicy, Message, Position, ReceiverServer, SenderServer

from .channels import batch, body_of, messages, pair
from .deadlines import eventually
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from pathlib import Path


class Delivery(Suite):
    """Messages of a channel whose connections hold."""

    async def test_notes_numbers_and_timestamps(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """They travel with their message."""
        inbox, outbox = pair(receiver, sender)
        before = time.time_ns() // 1000
        assert outbox.position == 0
        await outbox.send(b"a", b"first")
        await outbox.send(b"b")
        await outbox.send(memoryview(b"big" * 1_000_000), b"last")
        assert outbox.position == 3
        received = [await inbox.recv_message() for _ in range(3)]
        assert [(bytes(each.batch), each.note, each.sequence) for each in received] == [
            (b"a", b"first", 0),
            (b"b", b"", 1),
            (b"big" * 1_000_000, b"last", 2),
        ]
        assert all(before <= message.timestamp <= time.time_ns() // 1000 for message in received)
        await outbox.close()

    async def test_what_a_producer_fills_arrives(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Memory that the channel gives, wherever that lies, and where large bodies go by then."""
        inbox, outbox = pair(receiver, sender)
        for value, size in enumerate([1, 1 << 16, 3_000_000] * 3):
            memory = outbox.allocate(size)
            memory[:] = bytes([value]) * size
            await outbox.send(memory)
            assert bytes(await inbox.recv()) == bytes([value]) * size
            with pytest.raises(ValueError, match="released"):
                memory[0] = 0
        await outbox.close()

    async def test_flush_waits_for_the_receiver(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """After `flush` the receiver holds every message sent before it, read or not."""
        inbox, outbox = pair(receiver, sender)
        for number in range(1, 101):
            await outbox.send(bytes(number))
            await outbox.flush()
            assert inbox.statistics().received == outbox.statistics().acknowledged == number
        await outbox.close()

    async def test_large_messages_are_cut_and_joined(self, address: str) -> None:
        """24 MB pass; above the receiver's limit `send` raises an error with both numbers."""
        async with ReceiverServer(address, message_limit=30_000_000) as receiver, SenderServer() as sender:
            inbox = receiver.register_channel("c")
            outbox = sender.register_channel("c", to=receiver.address)
            big = batch(0, rows=3_000_000)
            await outbox.send(big)
            assert (await inbox.recv()).equals(big)
            with pytest.raises(netchannel.MessageTooLarge, match=r"3200\d+ bytes.*30000000"):
                await outbox.send(batch(0, rows=4_000_000))
            await outbox.send(batch(1))
            assert await inbox.recv() == batch(1)
            await outbox.close()

    async def test_what_the_receiver_that_came_cannot_take(self, vacant: str, sender: SenderServer) -> None:
        """A message above the limit, sent before there was a receiver, fails at once and is not retried."""
        outbox = sender.register_channel("c", to=vacant, codec="bytes")
        await outbox.send(bytes(300_000))
        async with ReceiverServer(vacant, message_limit=200_000) as receiver:
            receiver.register_channel("c", codec="bytes")
            async with asyncio.timeout(5):
                with pytest.raises(netchannel.MessageTooLarge, match=r"300000 bytes.*200000"):
                    await outbox.close()

    async def test_the_schema_is_known_before_data(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """On an empty stream too."""
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=receiver.address, schema=batch(0).schema)
        assert await inbox.schema() == batch(0).schema
        await outbox.close()
        assert [part async for part in inbox] == []

    async def test_codecs_must_agree(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """Another codec is a typed error on both sides."""
        inbox = receiver.register_channel("c", codec="arrow")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        with pytest.raises(netchannel.SchemaMismatch, match=r"'arrow' here, .*'bytes'"):
            await inbox.recv()
        with pytest.raises(netchannel.SchemaMismatch, match=r"'arrow' here, .*'bytes'"):
            await outbox.close()

    @pytest.mark.parametrize("declared", [True, False], ids=["declared", "learned"])
    async def test_schemas_must_agree(
        self, declared: bool, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Another schema is a typed error on both sides, in any order of events."""
        inbox = receiver.register_channel("c", schema=pa.schema({"n": pa.string()}))
        outbox = sender.register_channel(
            "c", to=receiver.address, schema=batch(0).schema if declared else None
        )
        if not declared:
            await outbox.attached()
            await outbox.send(batch(0))
        with pytest.raises(netchannel.SchemaMismatch, match=r"n: int64.*n: string"):
            await inbox.recv()
        with pytest.raises(netchannel.SchemaMismatch, match=r"n: int64.*n: string"):
            await outbox.close()

    async def test_another_schema_at_send(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """The wrong batch is refused where it is sent, the channel lives on."""
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=receiver.address)
        await outbox.send(batch(1))
        with pytest.raises(netchannel.SchemaMismatch, match=r"m: string.*n: int64"):
            await outbox.send(pa.record_batch({"m": ["x"]}))
        with pytest.raises(netchannel.SchemaMismatch, match=r"expected a\s+pyarrow.RecordBatch"):
            await outbox.send(b"bytes")
        assert await inbox.recv() == batch(1)
        await outbox.close()

    async def test_dictionaries_survive_reconnects(self, address: str) -> None:
        """Cut after every message: growing, replaced and unchanged dictionaries decode to equal strings."""
        words = [["a"], ["a"], ["a", "b"], ["a", "b", "c"], ["z"], ["z"], [None], [], ["q", "q"], ["a"]]
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            inbox = receiver.register_channel("c")
            outbox = sender.register_channel("c", to=receiver.address)
            received = []
            for row in words:
                await outbox.send(
                    pa.record_batch({"w": pa.array(row, pa.dictionary(pa.int32(), pa.string()))})
                )
                received.append((await inbox.recv()).column("w").to_pylist())
                network.cut()
            await outbox.close()
            assert received == words
            assert outbox.statistics().reconnects >= len(words) - 1

    async def test_many_are_sent_at_once(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """`send_many` waits for room as it goes; in order, once, small and large in turn."""
        inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_messages=10))
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=50)
        )
        bodies = [body_of(number) * (1000 if number % 100 == 0 else 1) for number in range(1000)]
        sending = asyncio.create_task(outbox.send_many(bodies))
        assert [bytes(await inbox.recv()) for _ in bodies] == bodies
        await sending
        assert (await outbox.close()).acknowledged == len(bodies)

    # -- acknowledgement

    async def test_a_successor_of_the_consumer_goes_on(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Read 50, acknowledged 30, detached: the next one is given 30 and on."""
        first = receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        for number in range(100):
            await outbox.send(b"%d" % number)
        for _ in range(50):
            await first.recv()
        await first.ack(30)
        await eventually(lambda: outbox.statistics().acknowledged == 30)
        position = first.position
        assert position == Position(outbox.stream, 50)
        await first.detach()
        second = receiver.register_channel(
            "c", codec="bytes", ack="explicit", resume_from=Position(outbox.stream, 30)
        )
        message = await second.recv_message()
        assert message == Message(b"30", b"", 30, message.timestamp)
        while (message := await second.recv_message()).sequence < 99:
            pass
        await second.ack(100)
        assert (await outbox.close()).acknowledged == 100

    async def test_a_successor_of_the_producer_goes_on(self, receiver: ReceiverServer) -> None:
        """It learns the next number and the last note; the consumer sees one stream."""
        inbox = receiver.register_channel("c", codec="bytes")
        stream = None
        for life in range(3):
            async with SenderServer(timing=QUICK) as sender:
                outbox = sender.register_channel(
                    "c", to=receiver.address, codec="bytes", stream=stream, replayable=stream is not None
                )
                assert await outbox.attached() == (10 * life, b"after %d" % (life - 1) if life else b"")
                for number in range(10 * life, 10 * life + 9):
                    await outbox.send(b"%d" % number)
                await outbox.send(b"%d" % (10 * life + 9), b"after %d" % life)
                stream = outbox.stream
                if life < 2:
                    await outbox.detach()
                else:
                    assert (await outbox.close()).acknowledged == 30
        assert [int(body) async for body in inbox] == list(range(30))

    async def test_a_receiver_that_comes_back_goes_on(self, vacant: str, sender: SenderServer) -> None:
        """Three servers at one address, one after the other: what was acknowledged comes once."""
        outbox = sender.register_channel("c", to=vacant, codec="bytes")
        producing = asyncio.create_task(_count(outbox, 100))
        received: list[int] = []
        position: Position | None = None
        for upto in (30, 70, 100):
            async with ReceiverServer(vacant, timing=QUICK) as receiver:
                inbox = receiver.register_channel("c", codec="bytes", ack="explicit", resume_from=position)
                received += [int(await inbox.recv()) for _ in range(len(received), upto)]
                position = Position(outbox.stream, upto)
                await inbox.ack(upto)
                if upto == 100:
                    await producing
        assert received == list(range(100))

    # -- buffers on disk, and full ones

    async def test_a_durable_buffer_outlives_its_senders(self, vacant: str, tmp_path: Path) -> None:
        """Three senders without a receiver, one after the other: one stream, in order, once."""
        durable = BufferPolicy(directory=tmp_path)
        for life in range(3):
            async with SenderServer(timing=QUICK) as sender:
                outbox = sender.register_channel("c", to=vacant, codec="bytes", buffer=durable)
                assert outbox.position == 50 * life
                await outbox.send_many([body_of(number) for number in range(50 * life, 50 * life + 50)])
        async with ReceiverServer(vacant, timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
            inbox = receiver.register_channel("c", codec="bytes")
            outbox = sender.register_channel("c", to=vacant, codec="bytes", buffer=durable)
            assert (await outbox.close()).acknowledged == 150
            assert [bytes(body) async for body in inbox] == [body_of(number) for number in range(150)]

    async def test_a_durable_buffer_survives_cuts(self, address: str, tmp_path: Path) -> None:
        """On disk before it goes out, again from there after each cut: exact."""
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            inbox = receiver.register_channel("c", codec="bytes")
            policy = BufferPolicy(directory=tmp_path, max_bytes=10_000)
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=policy)

            async def produce() -> None:
                for first in range(0, 400, 20):
                    await outbox.flush()
                    await outbox.send_many([body_of(number) for number in range(first, first + 20)])
                    network.cut()
                await outbox.close()

            producing = asyncio.create_task(produce())
            assert [bytes(body) async for body in inbox] == [body_of(number) for number in range(400)]
            await producing
            assert outbox.statistics().reconnects >= 19

    async def test_what_does_not_fit_is_spilled(self, vacant: str, sender: SenderServer) -> None:
        """Messages far above the buffer go to disk without a receiver, and come back in order with one."""
        policy = BufferPolicy(max_bytes=100_000, when_full="spill")
        outbox = sender.register_channel("c", to=vacant, codec="bytes", buffer=policy)
        bodies = [body_of(number) * 100 for number in range(300)]
        await outbox.send_many(bodies)
        await eventually(lambda: outbox.statistics().disk_bytes > 1_000_000)
        async with ReceiverServer(vacant, timing=QUICK) as receiver:
            inbox = receiver.register_channel("c", codec="bytes")
            closing = asyncio.create_task(outbox.close())
            assert [bytes(body) async for body in inbox] == bodies
            assert (await closing).acknowledged == 300
            assert outbox.statistics().disk_bytes == 0

    async def test_the_oldest_may_be_dropped(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """Unsent messages are dropped, oldest first; both sides count them, and the numbers show the gap."""
        policy = BufferPolicy(max_messages=10, when_full="drop_oldest")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=policy)
        for number in range(100):
            await outbox.send(b"%d" % number)
            await asyncio.sleep(0)  # frames are made once per turn of the loop
        inbox = receiver.register_channel("c", codec="bytes")
        assert (await outbox.close()).acknowledged == 100
        received = [(message.sequence, int(message.batch)) async for message in messages(inbox)]
        assert received == [(number, number) for number in range(90, 100)]
        assert outbox.statistics().dropped == inbox.statistics().dropped == 90
        assert inbox.statistics().received == 10

    async def test_dropping_and_explicit_acknowledgement_do_not_go_together(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Refused by name, for good."""
        receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(when_full="drop_oldest")
        )
        with pytest.raises(netchannel.HandshakeError, match="drop_oldest"):
            await outbox.close()


async def _count(outbox: netchannel.SenderChannel, count: int) -> None:
    for number in range(count):
        await outbox.send(b"%d" % number)
    await outbox.close()
