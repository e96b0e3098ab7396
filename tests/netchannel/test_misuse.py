"""What applications do with channels that nobody had in mind: typed errors at once, and no harm to others."""

from __future__ import annotations

import asyncio

import pytest

from netchannel import (
    ChannelClosedByPeer,
    ChannelFailed,
    ReceiverServer,
    SenderServer,
)


async def test_a_successor_may_close_before_it_is_attached(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-END-8: it has nothing to send, and ends the stream where its predecessor has left it."""
    inbox = receiver.register_channel("c", codec="bytes")
    first = sender.register_channel("c", to=receiver.address, codec="bytes", stream="s")
    await first.send_many([b"0", b"1", b"2"])
    await first.detach()
    second = sender.register_channel("c", to=receiver.address, codec="bytes", stream="s", replayable=True)
    async with asyncio.timeout(5):
        assert (await second.close()).acknowledged == 3
    assert [bytes(body) async for body in inbox] == [b"0", b"1", b"2"]


async def test_an_error_may_name_a_file_that_is_no_utf_8(
    receiver: ReceiverServer, sender: SenderServer
) -> None:
    """CH-END-2: such names have surrogates, which no wire can carry: they arrive escaped."""
    inbox = receiver.register_channel("c", codec="bytes")
    outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
    await outbox.send(b"0")
    await outbox.abort(FileNotFoundError("no file caf\udce9"))
    assert bytes(await inbox.recv()) == b"0"
    with pytest.raises(ChannelFailed, match=r"no file caf\\udce9"):
        await inbox.recv()

    other = receiver.register_channel("other", codec="bytes")
    outbox = sender.register_channel("other", to=receiver.address, codec="bytes")
    await outbox.attached()
    await other.close("no room for caf\udce9")
    await outbox.changes.wait()
    with pytest.raises(ChannelClosedByPeer, match=r"no room for caf\\udce9"):
        await outbox.send(b"1")
    with pytest.raises(ValueError, match="stream"):
        sender.register_channel("third", to=receiver.address, codec="bytes", stream="caf\udce9")
