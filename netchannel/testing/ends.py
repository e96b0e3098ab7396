"""How streams end: cleanly, by a failure, by a consumer that leaves, or never, and that nothing waits forever."""

from __future__ import annotations

import asyncio

import pytest

import netchannel
from netchannel import BufferPolicy, CloseReport, ReceiverServer, SenderServer, Timing

from .channels import pair
from .deadlines import eventually, least_s
from .faults import FaultyTransport
from .suite import QUICK, Suite


class Ends(Suite):
    """Ends of all kinds. Clean ones are at the end of most other tests."""

    async def test_closing_waits_for_the_acknowledgement(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """A consumer that commits per 1 000 gets 1 010 and a clean end, and then commits the rest."""
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        for number in range(1010):
            await outbox.send(b"%d" % number)
        closing = asyncio.create_task(outbox.close())
        received = 0
        async for body in inbox:
            assert int(body) == received
            received += 1
            if received == 1000:
                await inbox.ack(received)
        assert received == 1010
        assert not closing.done()
        await inbox.ack(1010)
        assert await closing == CloseReport(acknowledged=1010)

    async def test_abort_reaches_the_consumer(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """After the data, with the message."""
        inbox, outbox = pair(receiver, sender)
        await outbox.send(b"x")
        await outbox.abort(ValueError("bad row 7"))
        assert await inbox.recv() == b"x"
        with pytest.raises(netchannel.ChannelFailed, match="ValueError: bad row 7"):
            await inbox.recv()

    async def test_leaving_by_an_exception_is_no_clean_end(self, receiver: ReceiverServer) -> None:
        """The consumer gets what was sent, then the failure with its cause."""
        inbox = receiver.register_channel("c", codec="bytes")

        async def fail() -> None:
            async with SenderServer() as sender:
                outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
                await outbox.send(b"x")
                raise ZeroDivisionError("the answer")

        with pytest.raises(ZeroDivisionError):
            await fail()
        assert await inbox.recv() == b"x"
        with pytest.raises(netchannel.ChannelFailed, match=r"left without closing: the answer"):
            await inbox.recv()

    async def test_a_consumer_that_leaves_stops_the_producer(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """With its reason; also one that waits for room."""
        inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_messages=1))
        outbox = sender.register_channel(
            "c", to=receiver.address, codec="bytes", buffer=BufferPolicy(max_messages=3)
        )

        async def produce() -> None:
            while True:
                await outbox.send(bytes(1000))

        producing = asyncio.create_task(produce())
        await inbox.recv()
        await inbox.close("three is enough")
        with pytest.raises(netchannel.ChannelClosedByPeer, match="three is enough"):
            await producing
        with pytest.raises(netchannel.ChannelClosed):
            await inbox.recv()

    async def test_closing_comes_back_where_nobody_is(self, vacant: str, sender: SenderServer) -> None:
        """`close(grace)` reports the undelivered messages."""

        async def send_and_close() -> None:
            outbox = sender.register_channel("c", to=vacant, codec="bytes")
            await outbox.send(b"x")
            report = await outbox.close(grace=0.1)
            assert report == CloseReport(acknowledged=0, undelivered_from=0, undelivered=1)
            with pytest.raises(netchannel.ChannelBroken, match=r"grace=0\.1"):
                await outbox.send(b"y")

        assert await least_s(1, send_and_close) <= 1

    async def test_closing_comes_back_where_nothing_passes(self, address: str) -> None:
        """Also where connections stand and carry nothing, and then leaving both servers does."""
        timing = Timing(leave_s=0.1)

        async def send_and_leave() -> None:
            async with (
                FaultyTransport() as network,
                ReceiverServer(network.at(address), timing=timing) as receiver,
                SenderServer(timing=timing) as sender,
            ):
                _, outbox = pair(receiver, sender)
                await outbox.send(b"x")
                await outbox.flush()
                network.stall()
                await outbox.send(b"y")
                report = await outbox.close(grace=0.1)
                assert report == CloseReport(acknowledged=1, undelivered_from=1, undelivered=1)

        assert await least_s(3, send_and_leave) <= 3

    async def test_leaving_does_not_wait_for_who_is_not_there(self, vacant: str) -> None:
        """An exception comes out at once where no receiver listens."""

        async def send_and_leave() -> None:
            async with SenderServer() as sender:
                await sender.register_channel("c", to=vacant, codec="bytes").send(b"x")

        assert await least_s(2, send_and_leave) <= 2

    async def test_a_receiver_that_leaves_is_heard(self, address: str, sender: SenderServer) -> None:
        """Its channels are detached: the sender keeps unacknowledged messages, and is notified at once."""
        async with ReceiverServer(address, timing=QUICK) as receiver:
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
            outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
            await outbox.send(b"x")
            assert await inbox.recv() == b"x"
        await eventually(lambda: outbox.statistics().state == "registered")
        with pytest.raises(netchannel.ChannelClosed):
            await inbox.recv()
        assert await outbox.close(grace=0) == CloseReport(0, undelivered_from=0, undelivered=1)
