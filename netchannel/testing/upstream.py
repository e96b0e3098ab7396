"""Upqueries of consumers to producers: against the stream's direction, at the same time as messages."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import netchannel
from netchannel import BufferPolicy, ReceiverServer, RetainPolicy, SenderServer

from .channels import body_of, messages, pair
from .deadlines import eventually
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from pathlib import Path

    from netchannel import ReceiverChannel, RetainedChannel, SenderChannel

MIB = 1 << 20
CUTS = 30
AGAIN_S = 0.02
"""After how long a question is asked again."""


async def answer(outbox: SenderChannel) -> None:
    """Send the requested messages, with the question as their note, for as long as the channel lasts."""
    while True:
        question = await outbox.recv_upquery()
        await outbox.send(b"the answer to " + question, question)


async def attached(outbox: SenderChannel, inbox: ReceiverChannel | RetainedChannel) -> None:
    """Wait until both sides know of each other."""
    await outbox.attached()
    await eventually(lambda: inbox.statistics().state == "attached")


class Upstream(Suite):
    """Upqueries, and what is answered."""

    async def test_a_producer_is_asked_and_answers(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Upqueries have any size up to 1 MiB, and arrive in the order in which they were sent.

        The answers are messages among others.
        """
        inbox, outbox = pair(receiver, sender)
        assert not inbox.upquery(b"nobody is there yet")
        await attached(outbox, inbox)
        asked = [b"", b"k=1", bytes(range(256)) * 300, bytes(MIB), b"k=2"]
        assert all(map(inbox.upquery, asked))
        assert [await outbox.recv_upquery() for _ in asked] == asked
        await outbox.send(b"before")
        answering = asyncio.create_task(answer(outbox))
        assert inbox.upquery(b"k=3")
        assert bytes(await inbox.recv()) == b"before"
        message = await inbox.recv_message()
        assert (bytes(message.batch), message.note) == (b"the answer to k=3", b"k=3")
        with pytest.raises(netchannel.MessageTooLarge, match=r"1048577 bytes .* 1048576"):
            inbox.upquery(bytes(MIB + 1))
        with pytest.raises(TypeError, match="expected bytes"):
            inbox.upquery("k=4")  # type: ignore[arg-type]
        assert inbox.statistics().upqueries == outbox.statistics().upqueries == 6
        await outbox.close()
        assert not inbox.upquery(b"behind the end")
        with pytest.raises(netchannel.ChannelClosed, match="was closed by this side"):
            await answering

    @pytest.mark.parametrize("kept", ["in memory", "spilled", "on disk", "by the receiver"])
    async def test_whatever_keeps_the_stream(
        self, kept: str, receiver: ReceiverServer, sender: SenderServer, tmp_path: Path
    ) -> None:
        """Also where messages wait on a disk, on either side."""
        policies = {
            "spilled": BufferPolicy(max_bytes=1000, when_full="spill"),
            "on disk": BufferPolicy(directory=tmp_path),
        }
        inbox = (
            receiver.retain_channel("c", RetainPolicy(), codec="bytes")
            if kept == "by the receiver"
            else receiver.register_channel("c", codec="bytes")
        )
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=policies.get(kept))
        await outbox.send_many([body_of(number) for number in range(100)])
        await attached(outbox, inbox)
        assert inbox.upquery(b"k=1")
        assert await outbox.recv_upquery() == b"k=1"
        await outbox.send(b"the answer")
        await outbox.flush()
        assert inbox.statistics().upqueries == outbox.statistics().upqueries == 1
        await outbox.close(grace=0)

    async def test_full_connections_are_in_nobodys_way(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """A connection full of unread messages lets upqueries through; one full of upqueries, acknowledgements."""
        limit = BufferPolicy(max_bytes=MIB)
        inbox = receiver.register_channel("c", codec="bytes", buffer=limit)
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes", buffer=limit)
        count = self.held_by_system() // MIB + 16

        async def produce() -> None:
            for _ in range(count):
                await outbox.send(bytes(MIB))

        producing = asyncio.create_task(produce())
        await eventually(lambda: inbox.statistics().buffered_bytes >= MIB)
        assert not producing.done()
        assert inbox.upquery(b"k=1")
        assert await outbox.recv_upquery() == b"k=1"
        assert not producing.done()
        for number in range(count):
            while number < 8 and inbox.upquery(bytes(MIB // 2)):
                pass
            await inbox.recv()
        await producing
        await outbox.flush()
        assert outbox.statistics().reconnects == 0
        await outbox.close()

    async def test_a_flood_is_bounded(
        self, receiver: ReceiverServer, sender: SenderServer, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The last 1,024 of 3,000 that are not taken are kept; the sender counts the others, and logs it once."""
        inbox, outbox = pair(receiver, sender)
        await attached(outbox, inbox)
        for number in range(3000):
            if number % 1000 == 0:  # as many are written at once
                await eventually(lambda asked=number: outbox.statistics().upqueries == asked)  # type: ignore[misc]
            assert inbox.upquery(b"%d" % number)
        await eventually(lambda: outbox.statistics().upqueries == 3000)
        assert outbox.statistics().upqueries_dropped == 3000 - 1024
        assert [int(await outbox.recv_upquery()) for _ in range(1024)] == list(range(3000 - 1024, 3000))
        assert len([each for each in caplog.records if "drops upqueries" in each.message]) == 1
        await outbox.close()

    async def test_who_asks_again_is_answered_through_cuts(self, address: str) -> None:
        """Each question until its answer comes.

        Messages come once and in order, however often a question is repeated.
        """
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            inbox, outbox = pair(receiver, sender)
            answering = asyncio.create_task(answer(outbox))
            due = 0
            for number in range(CUTS):
                question, note = b"%d" % number, b""
                inbox.upquery(question)
                for _ in range(
                    number % 4
                ):  # it, or its answer, may be on its way, or not have been taken yet
                    await asyncio.sleep(0)
                network.cut()
                while note != question:
                    try:
                        async with asyncio.timeout(AGAIN_S):
                            message = await inbox.recv_message()
                    except TimeoutError:
                        inbox.upquery(question)
                        continue
                    assert message.sequence == due
                    due, note = due + 1, message.note
            await outbox.close()
            with pytest.raises(netchannel.ChannelClosed):
                await answering
            async for message in messages(inbox):
                assert message.sequence == due
                due += 1
            assert outbox.statistics().reconnects > 0

    async def test_what_a_lost_connection_brought_is_gone(self, address: str) -> None:
        """It was not taken, and the peer at the other end now has not asked it."""
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            inbox, outbox = pair(receiver, sender)
            await attached(outbox, inbox)
            assert inbox.upquery(b"before")
            await eventually(lambda: outbox.statistics().upqueries == 1)
            network.cut()
            await eventually(lambda: outbox.statistics().reconnects > 0)
            await attached(outbox, inbox)
            assert inbox.upquery(b"behind")
            assert await outbox.recv_upquery() == b"behind"
            await outbox.close()

    async def test_who_waits_for_upqueries_hears_of_the_end(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """As `send` does: of a consumer that leaves, of this side's own close while that is not acknowledged."""
        inbox, outbox = pair(receiver, sender)
        waiting = asyncio.create_task(outbox.recv_upquery())
        await attached(outbox, inbox)
        await inbox.close("seen enough")
        with pytest.raises(netchannel.ChannelClosedByPeer, match="seen enough"):
            await waiting
        other = receiver.register_channel("d", codec="bytes", ack="explicit")
        outbox = sender.register_channel("d", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        waiting = asyncio.create_task(outbox.recv_upquery())
        closing = asyncio.create_task(outbox.close())
        with pytest.raises(netchannel.ChannelClosed, match="was closed by this side"):
            await waiting
        assert not closing.done()
        await other.recv()
        await other.ack(1)
        await closing

    async def test_a_call_that_is_cancelled_takes_none(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Each upquery goes to one caller, wherever a call is cancelled."""
        inbox, outbox = pair(receiver, sender)
        await attached(outbox, inbox)
        given: list[bytes] = []

        async def take() -> None:
            given.append(await outbox.recv_upquery())

        asked = [b"%d" % number for number in range(100)]
        for number, question in enumerate(asked):
            taking = asyncio.create_task(take())
            assert inbox.upquery(question)
            for _ in range(number % 7):
                await asyncio.sleep(0)
            taking.cancel()
            await asyncio.wait([taking])
        while len(given) < len(asked):
            await take()
        assert given == asked
        await outbox.close()

    async def test_the_consumer_of_groups_has_nobody_to_ask(
        self, receiver: ReceiverServer, tmp_path: Path
    ) -> None:
        """Its messages were committed, and have no producer to ask."""
        inbox = receiver.register_staged_channel("c", netchannel.StagingPolicy(tmp_path), codec="bytes")
        assert not inbox.upquery(b"k=1")
        await inbox.detach()
