"""How channels come about: in either order, once, and only between permitted peers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

import netchannel
from netchannel import CloseReport, FaultPolicy, Position, ReceiverServer, SenderServer, Timing

from .channels import batch, pair
from .deadlines import eventually, least_s
from .faults import FaultyTransport
from .suite import QUICK, Suite

if TYPE_CHECKING:
    from netchannel import SenderChannel


class Establishment(Suite):
    """Channels that open, or are refused."""

    async def test_the_twelve_lines(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """In order, once, a clean end; after flush the receiver has everything."""
        inbox = receiver.register_channel("flights")
        outbox = sender.register_channel("flights", to=receiver.address)
        for number in range(100):
            await outbox.send(batch(number))
        await outbox.flush()
        assert inbox.statistics().received == 100
        report = await outbox.close()
        assert [received async for received in inbox] == [batch(number) for number in range(100)]
        assert report == CloseReport(acknowledged=100)
        with pytest.raises(netchannel.EndOfChannel):
            await inbox.recv()
        with pytest.raises(netchannel.ChannelClosed):
            await outbox.send(batch(0))

    async def test_registering_needs_no_network(self, vacant: str, sender: SenderServer) -> None:
        """It returns at once, without a receiver."""
        made: list[SenderChannel] = []

        async def register() -> None:
            made.append(sender.register_channel(f"c{len(made)}", to=vacant))

        assert await least_s(0.01, register) <= 0.01
        for outbox in made:
            assert outbox.statistics().state == "registered"
            assert await outbox.close(grace=0.05) == CloseReport(acknowledged=0, undelivered_from=0)

    async def test_the_sender_comes_first(self, vacant: str, sender: SenderServer) -> None:
        """Messages sent before the peer exists are delivered when it appears, in order, once."""
        outbox = sender.register_channel("c", to=vacant)
        for number in range(1000):
            await outbox.send(batch(number))
        async with ReceiverServer(vacant) as receiver:
            inbox = receiver.register_channel("c")
            assert (await outbox.close()).acknowledged == 1000
            assert [received async for received in inbox] == [batch(number) for number in range(1000)]

    async def test_the_receiver_comes_first(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """`recv` is pending, the sender comes later."""
        inbox = receiver.register_channel("c")
        waiting = asyncio.create_task(inbox.recv())
        await asyncio.sleep(0)
        outbox = sender.register_channel("c", to=receiver.address)
        await outbox.send(batch(7))
        assert await waiting == batch(7)
        await outbox.close()

    async def test_a_denied_channel_is_served_once_it_is_registered(self, receiver: ReceiverServer) -> None:
        """The denial is visible, the sender lives on, and does not wait out its backoff."""
        async with SenderServer(timing=Timing(backoff_s=60.0, backoff_limit_s=60.0)) as sender:
            outbox = sender.register_channel("c", to=receiver.address)
            await outbox.send(batch(1))
            await eventually(lambda: outbox.statistics().state == "denied")
            inbox = receiver.register_channel("c")
            async with asyncio.timeout(5):
                assert await inbox.recv() == batch(1)
            await outbox.close()

    async def test_a_taken_id_is_refused(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """The second registration fails, the first is unharmed."""
        inbox = receiver.register_channel("c")
        outbox = sender.register_channel("c", to=receiver.address)
        with pytest.raises(netchannel.ChannelInUse, match="'c'"):
            receiver.register_channel("c")
        with pytest.raises(netchannel.ChannelInUse, match="'c'"):
            sender.register_channel("c", to=receiver.address)
        await outbox.send(batch(1))
        assert await inbox.recv() == batch(1)
        await outbox.close()

    async def test_a_new_stream_on_an_ended_id(self, receiver: ReceiverServer, sender: SenderServer) -> None:
        """Monday's job ends, Tuesday's runs on the same id."""
        for day in (b"monday", b"tuesday"):
            inbox, outbox = pair(receiver, sender)
            await outbox.send(day)
            await outbox.close()
            assert [bytes(part) async for part in inbox] == [day]

    async def test_a_new_stream_waits_until_the_last_one_is_read(self, receiver: ReceiverServer) -> None:
        """Under `accept_new_stream`: refused while messages are unread, and then notified at once."""
        inbox = receiver.register_channel("c", codec="bytes", fault=FaultPolicy(accept_new_stream=True))
        async with SenderServer(timing=QUICK) as first:
            last = first.register_channel("c", to=receiver.address, codec="bytes")
            await last.send_many([b"%d" % number for number in range(10)])
            await last.flush()
            await last.detach()
        async with SenderServer(timing=Timing(backoff_s=60.0, backoff_limit_s=60.0)) as second:
            fresh = second.register_channel("c", to=receiver.address, codec="bytes")
            await fresh.send(b"fresh")
            await eventually(lambda: fresh.statistics().state == "denied")
            for number in range(10):
                assert inbox.position == Position(last.stream, number)
                assert await inbox.recv() == b"%d" % number
            async with asyncio.timeout(5):
                assert await inbox.recv() == b"fresh"
            assert inbox.position == Position(fresh.stream, 1)
            await fresh.close()

    async def test_many_channels_share_one_control_connection(self, address: str) -> None:
        """100 channels: 101 connections, each channel exact; none when they are over."""
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
            SenderServer(timing=QUICK) as sender,
        ):
            pairs = [pair(receiver, sender, f"c{number}") for number in range(100)]
            await asyncio.gather(*(outbox.attached() for _, outbox in pairs))
            assert network.connections == network.dialed == 101

            async def produce(outbox: SenderChannel) -> None:
                for number in range(20):
                    await outbox.send(f"{outbox.id} {number}".encode())
                await outbox.close()

            await asyncio.gather(*(produce(outbox) for _, outbox in pairs))
            for inbox, _ in pairs:
                received = [bytes(body).decode() async for body in inbox]
                assert received == [f"{inbox.id} {number}" for number in range(20)]
            await eventually(lambda: network.connections == 0)

    async def test_leaving_at_any_moment_leaves_no_connection(self, address: str) -> None:
        """Also while it is being made."""
        async with (
            FaultyTransport() as network,
            ReceiverServer(network.at(address), timing=QUICK) as receiver,
        ):
            for turns in range(20):
                async with SenderServer(timing=Timing(leave_s=0.0)) as sender:
                    sender.register_channel("c", to=receiver.address)
                    for _ in range(turns):
                        await asyncio.sleep(0)
            await eventually(lambda: network.connections == 0)

    async def test_statistics_agree_with_the_traffic(
        self, receiver: ReceiverServer, sender: SenderServer
    ) -> None:
        """Counters on both sides."""
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        for _ in range(10):
            await outbox.send(bytes(100))
        await eventually(lambda: outbox.statistics().received == 10)
        for _ in range(4):
            await inbox.recv()
        await inbox.ack(3)
        await eventually(lambda: outbox.statistics().acknowledged == 3)
        sent, got = outbox.statistics(), inbox.statistics()
        assert (sent.state, sent.sent, sent.received, sent.bytes) == ("attached", 10, 10, 1000)
        assert (sent.buffered_messages, sent.in_flight, sent.reconnects) == (7, 7, 0)
        assert (got.state, got.received, got.acknowledged, got.bytes) == ("attached", 10, 3, 1000)
        assert (got.buffered_messages, got.buffered_bytes) == (6, 600)
        await outbox.close(grace=0)

    async def test_servers_know_their_connections(self, address: str) -> None:
        """Their number, their peers, their bytes, and how long a heartbeat takes."""
        timing = Timing(heartbeat_s=0.02)
        async with ReceiverServer(address, timing=timing) as receiver, SenderServer(timing=timing) as sender:
            inbox, outbox = pair(receiver, sender)
            await outbox.send(bytes(100_000))
            await outbox.flush()
            await eventually(lambda: sender.statistics().peers[0].round_trip_s is not None)
            await eventually(lambda: receiver.statistics().peers[0].round_trip_s is not None)
            sent, received = sender.statistics(), receiver.statistics()
            assert (list(sent.channels), list(received.channels)) == ([("c", receiver.address)], ["c"])
            for known in (sent, received):
                (peer,) = known.peers
                assert (known.connections, peer.state, peer.channels) == (2, "up", 1)
            assert sent.peers[0].address == receiver.address
            assert sent.bytes_sent > 100_000 < received.bytes_received
            assert sent.bytes_received > 0 < received.bytes_sent
            await outbox.close()
            assert len([body async for body in inbox]) == 1

    @pytest.mark.parametrize(
        ("ours", "theirs", "reason"),
        [
            ("open sesame", "open barley", "different secret"),
            ("open sesame", None, "requires a"),
            (None, "open sesame", "has no secret"),
        ],
        ids=["another", "none", "unasked"],
    )
    async def test_strangers_open_no_channels(
        self, ours: str | None, theirs: str | None, reason: str, address: str
    ) -> None:
        """A wrong or missing secret is refused, named at the sender, and not retried."""
        async with ReceiverServer(address, secret=ours) as receiver, SenderServer(secret=theirs) as sender:
            inbox, outbox = pair(receiver, sender)
            async with asyncio.timeout(5):
                with pytest.raises(netchannel.HandshakeError, match=f"{reason}.*the same secret="):
                    await outbox.close()
            assert inbox.statistics().state == "registered"

    async def test_who_knows_the_secret_is_served(self, address: str) -> None:
        """With the same secret on both sides the channel works."""
        async with ReceiverServer(address, secret="s") as receiver, SenderServer(secret="s") as sender:  # noqa: S106 - a test's
            inbox, outbox = pair(receiver, sender)
            await outbox.send(b"x")
            await outbox.close()
            assert await inbox.recv() == b"x"
