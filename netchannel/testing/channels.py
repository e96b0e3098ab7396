"""Channels and messages as the tests of this kit make them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from netchannel import EndOfChannel

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from netchannel import Message, ReceiverChannel, ReceiverServer, SenderChannel, SenderServer


def pair(
    receiver: ReceiverServer, sender: SenderServer, channel_id: str = "c"
) -> tuple[ReceiverChannel, SenderChannel]:
    """Both ends of a channel of bytes."""
    inbox = receiver.register_channel(channel_id, codec="bytes")
    return inbox, sender.register_channel(channel_id, to=receiver.address, codec="bytes")


def batch(start: int, rows: int = 3) -> pa.RecordBatch:
    """A few numbers, or many."""
    return pa.record_batch({"n": pa.array(range(start, start + rows), pa.int64())})


def body_of(number: int) -> bytes:
    """Return the body of message ``number``: up to 300 bytes that no other message holds."""
    return b"%d " % number + bytes(number % 300)


async def messages(inbox: ReceiverChannel) -> AsyncIterator[Message]:
    """All messages that come, with their notes and numbers, up to the end."""
    while True:
        try:
            message = await inbox.recv_message()
        except EndOfChannel:
            return
        yield message
