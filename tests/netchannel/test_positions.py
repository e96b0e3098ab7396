"""Where a consumer goes on: behind what was acknowledged, or where it says, and never in another stream."""

from __future__ import annotations

import asyncio

import pytest

import netchannel
from netchannel import Position, ReceiverServer, SenderServer
from netchannel.testing.deadlines import eventually
from tests.support.scripts import script

pytestmark = [pytest.mark.uvloop]

TOTAL = 1000

READS_500_ACKS_300 = """
import asyncio, sys, netchannel
async def main():
    async with netchannel.ReceiverServer(sys.argv[1]) as receiver:
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        read = [int(bytes(await inbox.recv())) for _ in range(500)]
        assert read == list(range(500))
        await inbox.ack(300)
        print("acknowledged", flush=True)
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.processes
async def test_a_successor_of_a_killed_consumer_is_given_what_was_not_acknowledged(free_address: str) -> None:
    """CH-ACK-1: kill -9 after 500 were read and 300 acknowledged: who comes next, and says nothing, gets 300 on."""
    async with SenderServer() as sender, asyncio.timeout(60):
        outbox = sender.register_channel("c", to=free_address, codec="bytes")
        await outbox.send_many([b"%d" % number for number in range(TOTAL)])
        async with script(READS_500_ACKS_300, free_address) as consumer:
            assert await consumer.says() == "acknowledged"
            await eventually(lambda: outbox.statistics().acknowledged == 300)
            await consumer.kill()
        async with ReceiverServer(free_address) as receiver:
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
            message = await inbox.recv_message()
            assert (message.sequence, bytes(message.batch)) == (300, b"300")
            rest = [int(bytes(await inbox.recv())) for _ in range(301, TOTAL)]
            assert rest == list(range(301, TOTAL))
            await inbox.ack(TOTAL)
            assert (await outbox.close()).acknowledged == TOTAL


@pytest.mark.parametrize("names_stream", [True, False])
async def test_a_consumer_goes_on_where_it_says(names_stream: bool) -> None:
    """CH-ACK-2: `resume_from=n` gives n, n+1, ..., and frees what is below: PositionLost with both numbers."""
    async with ReceiverServer() as receiver, SenderServer() as sender, asyncio.timeout(60):
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send_many([b"%d" % number for number in range(TOTAL)])

        def consumer(number: int) -> netchannel.ReceiverChannel:
            position = Position(outbox.stream, number) if names_stream else number
            return receiver.register_channel("c", codec="bytes", ack="explicit", resume_from=position)

        for number in (0, 250, 400):
            inbox = consumer(number)
            read = [await inbox.recv_message() for _ in range(number, TOTAL)]
            assert [(each.sequence, int(bytes(each.batch))) for each in read] == [
                (each, each) for each in range(number, TOTAL)
            ]
            await inbox.detach()
        inbox = consumer(399)
        with pytest.raises(netchannel.PositionLost, match=r"number 399 .*oldest kept message is 400"):
            await inbox.recv()
        inbox = consumer(400)
        assert bytes(await inbox.recv()) == b"400"
        await inbox.close()
        with pytest.raises(netchannel.ChannelClosedByPeer):
            await outbox.close()


PRODUCES = """
import asyncio, sys, netchannel
async def main():
    async with netchannel.SenderServer() as sender:
        outbox = sender.register_channel("c", to=sys.argv[1], codec="bytes")
        await outbox.send_many([b"%s %d" % (sys.argv[2].encode(), number) for number in range(400)])
        await asyncio.Event().wait()
asyncio.run(main())
"""


@pytest.mark.processes
async def test_a_position_is_never_taken_for_one_of_another_stream(free_address: str) -> None:
    """CH-ACK-4: the sender, which keeps nothing on disk, restarts: number 350 of its new stream is not given."""
    async with ReceiverServer(free_address) as receiver, asyncio.timeout(60):
        inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
        async with script(PRODUCES, free_address, "old"):
            for number in range(350):
                assert bytes(await inbox.recv()) == b"old %d" % number
            position = inbox.position
            assert position is not None
            assert position.sequence == 350
        await inbox.detach()
        async with script(PRODUCES, free_address, "new"):
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit", resume_from=position)
            with pytest.raises(netchannel.StreamReplaced, match=rf"350.*{position.stream}"):
                await inbox.recv()
            inbox = receiver.register_channel("c", codec="bytes", ack="explicit")
            for number in range(400):
                assert bytes(await inbox.recv()) == b"new %d" % number
