"""Connections that break, stand still, or carry their bytes one by one, below channels that must not notice."""

from __future__ import annotations

import asyncio
import math
import random
from collections import deque
from itertools import count
from typing import TYPE_CHECKING, Literal

import pytest

from netchannel import BufferPolicy, ReceiverServer, SenderServer, Timing

from .channels import body_of, messages, pair
from .deadlines import eventually
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from netchannel import SenderChannel

CUTS = 200


class Outages(Suite):
    """Tests that nothing is lost, doubled or reordered when connections are lost."""

    @pytest.mark.parametrize("ack", ["receipt", "explicit"])
    async def test_cuts_at_random_bytes(self, ack: Literal["receipt", "explicit"], address: str) -> None:
        """Control and data connections, 200 of them: the sequence is exact."""
        draw = random.Random(11)  # noqa: S311 - faults that can be repeated
        lives = (1 + int(draw.expovariate(1 / 10_000)) for _ in count())
        async with (
            FaultyTransport(lives=lives) as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            inbox = receiver.register_channel("c", codec="bytes", ack=ack)
            # Frames hold what the buffer does: small ones get through connections that live for 10 000 bytes.
            outbox = sender.register_channel(
                "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=40)
            )

            async def produce() -> None:
                while network.cuts < CUTS:
                    await outbox.send(body_of(outbox.position), b"%d" % outbox.position)
                network.calm()
                await outbox.close()

            producing = asyncio.create_task(produce())
            number = 0
            async for message in messages(inbox):
                assert (message.sequence, message.batch) == (number, body_of(number))
                assert message.note == b"%d" % number
                number += 1
                if ack == "explicit":
                    await inbox.ack(number)
            await producing
            assert number == outbox.position
            assert network.cuts >= CUTS

    async def test_a_cut_at_every_byte(self, address: str) -> None:
        """Short streams, each with one cut at another byte, up to the last answer to the end."""
        plan: deque[int] = deque()

        def lives() -> Iterator[float]:
            while True:
                yield plan.popleft() if plan else math.inf

        timing = Timing(backoff_s=0.001, backoff_limit_s=0.001)
        async with (
            FaultyTransport(lives=lives()) as network,
            ReceiverServer(network.at(address), timing=timing) as receiver,
            SenderServer(timing=timing) as sender,
        ):
            holder = pair(receiver, sender, "holds the control connection")[1]
            await holder.attached()
            for life in count(1):
                plan.append(life)
                inbox, outbox = pair(receiver, sender)
                await outbox.send(b"one", b"note")
                await outbox.send(b"two")
                assert (await outbox.close()).acknowledged == 2
                assert [bytes(body) async for body in inbox] == [b"one", b"two"]
                if network.cuts < life:
                    break
            assert life > 200  # greeting, token, schema, data, end, and the answers to them
            assert holder.statistics().reconnects == 0
            await holder.close()

    @pytest.mark.parametrize("piece", [1, 100])
    async def test_few_bytes_at_a_time(self, piece: int, address: str) -> None:
        """Reads and writes of a byte, or of up to 100, are the same stream, both handshakes included."""
        async with (
            FaultyTransport(seed=3, piece=piece) as network,
            ReceiverServer(network.at(address), secret="s", timing=QUICK) as receiver,  # noqa: S106 - a test's
            SenderServer(secret="s", timing=QUICK) as sender,  # noqa: S106 - the same
        ):
            inbox, outbox = pair(receiver, sender)
            for number in range(20 * piece):
                await outbox.send(body_of(number), b"%d" % number)
            closing = asyncio.create_task(outbox.close())
            bodies = [bytes(body) async for body in inbox]
            assert bodies == [body_of(number) for number in range(20 * piece)]
            await closing
            assert outbox.statistics().reconnects == 0

    async def test_delays_change_nothing(self, address: str) -> None:
        """Bytes that are late come in order, on several connections at once."""
        async with (
            FaultyTransport(seed=4, piece=2000, delay_s=0.002) as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            pairs = [pair(receiver, sender, f"c{number}") for number in range(5)]

            async def produce(outbox: SenderChannel) -> None:
                for number in range(100):
                    await outbox.send(body_of(number))
                    if number % 20 == 0:
                        await outbox.flush()
                await outbox.close()

            await asyncio.gather(*(produce(outbox) for _, outbox in pairs))
            for inbox, outbox in pairs:
                assert [bytes(body) async for body in inbox] == [body_of(number) for number in range(100)]
                assert outbox.statistics().reconnects == 0

    async def test_a_silent_peer_is_found_dead_and_comes_back(self, address: str) -> None:
        """Both sides detect open connections that carry no data; no message is lost."""
        timing = Timing(
            heartbeat_s=0.05, dead_after_s=0.2, handshake_s=0.2, backoff_s=0.01, backoff_limit_s=0.05
        )
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=timing) as receiver,
            SenderServer(timing=timing) as sender,
        ):
            inbox, outbox = pair(receiver, sender)
            for number in range(100):
                await outbox.send(body_of(number))
            await outbox.flush()
            network.stall()
            for number in range(100, 200):
                await outbox.send(body_of(number))
            await eventually(lambda: outbox.statistics().state != "attached")
            await eventually(lambda: inbox.statistics().state != "attached")
            network.resume()
            assert (await outbox.close()).acknowledged == 200
            assert [bytes(body) async for body in inbox] == [body_of(number) for number in range(200)]
            # More where the machine is so busy that this process itself is silent for as long.
            assert min(inbox.statistics().reconnects, outbox.statistics().reconnects) >= 1

    async def test_a_stall_shorter_than_the_budget_is_no_death(self, address: str) -> None:
        """Delayed data arrives, on the existing connections."""
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address)) as receiver,
            SenderServer() as sender,
        ):
            inbox, outbox = pair(receiver, sender)
            await outbox.attached()
            dialed = network.dialed
            for stall in range(10):
                network.stall()
                for number in range(10 * stall, 10 * stall + 10):
                    await outbox.send(body_of(number))
                flushing = asyncio.create_task(outbox.flush())
                await asyncio.sleep(0.01)
                assert not flushing.done()
                network.resume()
                await flushing
            await outbox.close()
            assert [bytes(body) async for body in inbox] == [body_of(number) for number in range(100)]
            assert network.dialed == dialed
