"""Tests of backpressure: which side waits, and how much is held meanwhile."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from netchannel import BufferPolicy, ReceiverServer, SenderServer, Timing

from .deadlines import eventually, settled
from .suite import Suite

if TYPE_CHECKING:
    import pytest

MIB = 1 << 20


class Backpressure(Suite):
    """Consumers that are slow, or do not read at all."""

    async def test_only_the_channel_of_a_slow_consumer_is_held_back(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Its `send` waits, and another channel between the same nodes continues."""
        limit = BufferPolicy(max_bytes=MIB)
        slow = receiver.register_channel("slow", codec="bytes", buffer=limit)
        fast = receiver.register_channel("fast", codec="bytes", buffer=limit)
        outbox = {
            name: sender.register_channel(name, to=receiver.address, codec="bytes", buffer=limit)
            for name in ("slow", "fast")
        }
        body = bytes(MIB // 4)

        async def produce(name: str) -> None:
            for _ in range(200):
                await outbox[name].send(body)
            await outbox[name].close()

        producers = [asyncio.create_task(produce(name)) for name in outbox]
        assert len([part async for part in fast]) == 200
        held = slow.statistics()
        assert not producers[0].done()
        assert held.buffered_bytes <= 4 * MIB  # the mark, and what one read of the connection brings
        assert outbox["slow"].statistics().buffered_bytes <= MIB
        assert len([part async for part in slow]) == 200
        await asyncio.gather(*producers)

    async def test_a_stalled_consumer_bounds_what_is_under_way(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """A bound on the messages that wait for a consumer in its queue, both processes and the system."""
        inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_bytes=MIB))
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_bytes=None)
        )
        body = bytes(MIB // 4)
        bound = self.held_by_system() + 8 * MIB  # in addition: the queue, a read, and a write on either side
        count = (bound + 32 * MIB) // len(body)
        for _ in range(count):
            await outbox.send(body)
        await eventually(lambda: inbox.statistics().buffered_bytes >= MIB)
        under_way = await settled(lambda: outbox.statistics().in_flight)
        assert inbox.statistics().buffered_bytes <= 4 * MIB
        assert under_way * len(body) <= bound, "the writer is not paused while the reader does not read"
        closing = asyncio.create_task(outbox.close())
        assert len([part async for part in inbox]) == count
        await closing

    async def test_a_stalled_consumer_is_no_broken_connection(self, address: str) -> None:
        """It stalls for 10 times the heartbeat budget with a full connection, and is not reconnected."""
        timing = Timing(heartbeat_s=0.04, dead_after_s=0.24)
        async with ReceiverServer(address, timing=timing) as receiver, SenderServer(timing=timing) as sender:
            inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_messages=1))
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            for _ in range(32):
                await outbox.send(bytes(MIB))
            await asyncio.sleep(10 * timing.dead_after_s)
            closing = asyncio.create_task(outbox.close())
            assert len([part async for part in inbox]) == 32
            await closing
            assert outbox.statistics().reconnects == inbox.statistics().reconnects == 0

    async def test_a_starved_channel_is_named_on_both_sides(
        self, receiver: ReceiverServer, sender: SenderServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """A buffer of 64, a consumer that commits per 100: one warning each with both numbers, no silence."""
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=64)
        )

        async def produce() -> None:
            for _ in range(200):
                await outbox.send(b"x")
            await outbox.close()

        async def consume() -> None:
            for number in range(200):
                await inbox.recv()
                if number % 100 == 99:
                    await inbox.ack(number + 1)

        producing, consuming = asyncio.create_task(produce()), asyncio.create_task(consume())
        await eventually(lambda: inbox.statistics().starved and outbox.statistics().starved)
        warnings = [record.getMessage() for record in caplog.records if "starved" in record.getMessage()]
        assert len(warnings) == 2
        assert all("64" in warning and "number 0 on" in warning for warning in warnings)
        while not consuming.done():
            if inbox.statistics().starved:  # the way out: acknowledge what is there
                assert inbox.position is not None
                await inbox.ack(inbox.position.sequence)
            await asyncio.sleep(0.001)
        await producing

    async def test_cancelling_takes_nothing_away(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """`send`, `recv`, `flush` and `close` are cancelled at any await: each message once, by `position`."""
        limit = BufferPolicy(max_messages=2)
        inbox = receiver.register_channel("c", codec="bytes", buffer=limit)
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=limit)
        received: list[int] = []

        async def consume() -> None:
            async for body in inbox:
                received.append(int(body))  # noqa: PERF401 - one by one: it is cancelled in between

        async def cancelled_after(turns: int, coroutine: object) -> None:
            task = asyncio.ensure_future(coroutine)  # type: ignore[call-overload] # an object that is awaitable
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])

        number = 0
        for turn in range(200):
            before = outbox.position
            await cancelled_after(turn % 7, outbox.send(b"%d" % number))
            number += outbox.position - before
            await cancelled_after(turn % 5, outbox.flush())
            await cancelled_after(turn % 6, consume())
        consuming = asyncio.create_task(consume())
        await cancelled_after(1, outbox.close())
        await outbox.close()
        await consuming
        assert received == list(range(number))
        assert number > 100
