"""What stands still: this process' own loop, and a consumer beside others."""

from __future__ import annotations

import asyncio
import math
import socket
import time

import pytest

from netchannel import BufferPolicy, ReceiverChannel, ReceiverServer, SenderChannel, SenderServer, Timing
from netchannel.testing.deadlines import eventually, settled
from tests.support.scripts import script

pytestmark = [pytest.mark.uvloop]

BUDGET_S = 1.0
"""How long we wait for a sign of life; three of them is how long we stand still."""
TIMING = Timing(heartbeat_s=0.2, dead_after_s=BUDGET_S, backoff_limit_s=0.1)
PATIENT_S = 60.0

TRIES = 10
"""A busy machine takes its time from some of them, and seldom from all."""

PEER = """
import asyncio, sys, netchannel
async def produce(outbox, over):
    while not over.is_set():
        await outbox.send(b"%d" % outbox.position)
        await asyncio.sleep(0.001)
    await outbox.close()
async def main(address, budget_s, own):
    timing = netchannel.Timing(heartbeat_s=0.2, dead_after_s=float(budget_s), backoff_limit_s=0.1)
    over = asyncio.Event()
    async with netchannel.ReceiverServer(timing=timing) as receiver, netchannel.SenderServer(timing=timing) as sender:
        outbox = sender.register_channel(own, to=address, codec="bytes")
        inbox = receiver.register_channel("here", codec="bytes")
        producing = asyncio.create_task(produce(outbox, over))
        print(receiver.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)
        over.set()
        read = [int(bytes(body)) async for body in inbox]
        await producing
        assert read == list(range(len(read)))
        print(outbox.position, len(read), outbox.statistics().reconnects, inbox.statistics().reconnects, flush=True)
asyncio.run(main(*sys.argv[1:]))
"""


async def _blocked() -> None:
    """Let the loop stand still as it reads: then uvloop looks at its timers first, and at what has come after."""
    loop, over = asyncio.get_running_loop(), asyncio.Event()
    read, written = socket.socketpair()

    def block() -> None:
        loop.remove_reader(read)
        time.sleep(3 * BUDGET_S)
        over.set()

    with read, written:
        loop.add_reader(read, block)
        written.send(b"now")
        await over.wait()


@pytest.mark.processes
async def test_a_blocked_loop_does_not_take_its_peers_for_dead() -> None:
    """CH-CTL-4: blocked for 3 x the budget, towards a peer that waits longer and one that does not.

    It breaks no connection itself: none is lost where the peer is patient, one in each direction where it is not.
    """
    over = asyncio.Event()

    async def produce(outbox: SenderChannel) -> None:
        while not over.is_set():
            await outbox.send(b"%d" % outbox.position)
            await asyncio.sleep(0.001)
        await outbox.close()

    async def consume(inbox: ReceiverChannel) -> list[int]:
        return [int(bytes(body)) async for body in inbox]

    async with (
        asyncio.timeout(120),
        ReceiverServer(timing=TIMING) as receiver,
        SenderServer(timing=TIMING) as sender,
        script(PEER, receiver.address, PATIENT_S, "patient") as patient,
        script(PEER, receiver.address, BUDGET_S, "impatient") as impatient,
    ):
        inboxes = [receiver.register_channel(name, codec="bytes") for name in ("patient", "impatient")]
        outboxes = [
            sender.register_channel("here", to=await peer.says(), codec="bytes")
            for peer in (patient, impatient)
        ]
        async with asyncio.TaskGroup() as group:
            for outbox in outboxes:
                group.create_task(produce(outbox))
            consuming = [group.create_task(consume(inbox)) for inbox in inboxes]

            def moved() -> list[int]:
                sent = [outbox.statistics().acknowledged for outbox in outboxes]
                return sent + [inbox.statistics().received for inbox in inboxes]

            await eventually(lambda: min(moved()) > 100, within_s=60.0)
            await _blocked()
            before = moved()
            await eventually(lambda: all(now > then for now, then in zip(moved(), before, strict=True)))
            over.set()
            for peer in (patient, impatient):
                peer.go_on()
        for peer, outbox, inbox, task, losses in zip(
            (patient, impatient), outboxes, inboxes, consuming, (0, 1), strict=True
        ):
            sent, read, *reconnects = map(int, (await peer.says()).split())
            assert task.result() == list(range(sent))
            assert read == outbox.position
            assert {*reconnects, outbox.statistics().reconnects, inbox.statistics().reconnects} == {losses}
            await peer.ends()


@pytest.mark.timed
async def test_one_stalled_consumer_of_eight_slows_no_other_one_down() -> None:
    """CH-DATA-1: the seven take no more than twice the time for as much as beside an eighth that reads along."""
    count, body = 1000, bytes(10_000)
    small = BufferPolicy(max_bytes=100_000)
    async with ReceiverServer() as receiver, SenderServer() as sender, asyncio.timeout(120):

        async def take(inbox: ReceiverChannel, messages: int) -> None:
            for _ in range(messages):
                await inbox.recv()

        async def produce(outbox: SenderChannel) -> None:
            while True:
                await outbox.send(body)

        inboxes = [receiver.register_channel(f"c{n}", codec="bytes", buffer=small) for n in range(8)]
        outboxes = [
            sender.register_channel(f"c{n}", to=receiver.address, codec="bytes", buffer=small)
            for n in range(8)
        ]
        producing = [asyncio.create_task(produce(outbox)) for outbox in outboxes]
        *seven, eighth = inboxes

        async def seven_take_s() -> float:
            began = time.perf_counter()
            await asyncio.gather(*(take(each, count) for each in seven))
            return time.perf_counter() - began

        alike_s = stalled_s = math.inf
        for _ in range(TRIES):
            reading = asyncio.create_task(take(eighth, 1 << 60))
            alike_s = min(alike_s, await seven_take_s())
            reading.cancel()
            await asyncio.wait([reading])
            full = await settled(lambda: eighth.statistics().received)
            stalled_s = min(stalled_s, await seven_take_s())
            assert eighth.statistics().received == full
            assert outboxes[7].statistics().buffered_messages > 0
            if stalled_s <= 2 * alike_s:
                break
        assert stalled_s <= 2 * alike_s
        for task in producing:
            task.cancel()
        await asyncio.gather(*producing, return_exceptions=True)
        for outbox in outboxes:
            await outbox.close(grace=0)
