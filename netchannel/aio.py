"""The process-wide services for coroutines, whichever event loop they run on.

The names are those of `SenderServer`, `ReceiverServer` and their channels. What is awaited here runs on the services'
own thread; decoding happens on the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from netchannel import services
from netchannel.errors import EndOfChannel

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from netchannel import receiver, sender
    from netchannel.services import ServiceThread
    from netchannel.values import ChannelStatistics, CloseReport, Message, Position, ServerStatistics

__all__ = [
    "ReceiverChannel",
    "ReceiverServer",
    "SenderChannel",
    "SenderServer",
    "receiver_server",
    "sender_server",
]


class SenderChannel:
    """`netchannel.SenderChannel`, from any loop."""

    def __init__(self, thread: ServiceThread, channel: sender.SenderChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str:
        """As `netchannel.SenderChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> int:
        """As `netchannel.SenderChannel.position`."""
        return self._channel.position

    async def send(self, batch: Any, note: bytes = b"") -> None:
        """As `netchannel.SenderChannel.send`."""
        await self._thread.run(self._channel.send(batch, note))

    async def send_many(self, batches: Iterable[Any]) -> None:
        """As `netchannel.SenderChannel.send_many`."""
        await self._thread.run(self._channel.send_many(batches))

    async def flush(self) -> None:
        """As `netchannel.SenderChannel.flush`."""
        await self._thread.run(self._channel.flush())

    async def attached(self) -> tuple[int, bytes]:
        """As `netchannel.SenderChannel.attached`."""
        return await self._thread.run(self._channel.attached())

    async def close(self, grace: float | None = None) -> CloseReport:
        """As `netchannel.SenderChannel.close`."""
        return await self._thread.run(self._channel.close(grace))

    async def abort(self, error: str | BaseException) -> None:
        """As `netchannel.SenderChannel.abort`."""
        await self._thread.run(self._channel.abort(error))

    async def detach(self) -> None:
        """As `netchannel.SenderChannel.detach`."""
        await self._thread.run(self._channel.detach())

    def statistics(self) -> ChannelStatistics:
        """As `netchannel.SenderChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class ReceiverChannel:
    """`netchannel.ReceiverChannel`, from any loop; an async iterator."""

    def __init__(self, thread: ServiceThread, channel: receiver.ReceiverChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `netchannel.ReceiverChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> Position | None:
        """As `netchannel.ReceiverChannel.position`."""
        return self._channel.position

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.recv()
        except EndOfChannel:
            raise StopAsyncIteration from None

    async def recv(self) -> Any:
        """As `netchannel.ReceiverChannel.recv`."""
        return (await self.recv_message()).batch

    async def recv_message(self) -> Message:
        """As `netchannel.ReceiverChannel.recv_message`."""
        return self._channel.read(await self._thread.run(self._channel.next_item(), self._channel.put_back))

    async def ack(self, upto: int) -> None:
        """As `netchannel.ReceiverChannel.ack`."""
        await self._thread.run(self._channel.ack(upto))

    async def schema(self) -> pa.Schema | None:
        """As `netchannel.ReceiverChannel.schema`."""
        return await self._thread.run(self._channel.schema())

    async def close(self, reason: str = "the consumer is done") -> None:
        """As `netchannel.ReceiverChannel.close`."""
        await self._thread.run(self._channel.close(reason))

    async def detach(self) -> None:
        """As `netchannel.ReceiverChannel.detach`."""
        await self._thread.run(self._channel.detach())

    def statistics(self) -> ChannelStatistics:
        """As `netchannel.ReceiverChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class SenderServer:
    """The process-wide `netchannel.SenderServer`."""

    def __init__(self, thread: ServiceThread, server: sender.SenderServer) -> None:
        self._thread = thread
        self._server = server

    def register_channel(self, channel_id: str, to: str, **settings: Any) -> SenderChannel:
        """As `netchannel.SenderServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, to, **settings)
        return SenderChannel(self._thread, channel)

    def statistics(self) -> ServerStatistics[tuple[str, str]]:
        """As `netchannel.SenderServer.statistics`."""
        return self._server.statistics()


class ReceiverServer:
    """The process-wide `netchannel.ReceiverServer`."""

    def __init__(self, thread: ServiceThread, server: receiver.ReceiverServer) -> None:
        self._thread = thread
        self._server = server

    @property
    def address(self) -> str:
        """As `netchannel.ReceiverServer.address`."""
        return self._server.address

    def register_channel(self, channel_id: str, **settings: Any) -> ReceiverChannel:
        """As `netchannel.ReceiverServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, **settings)
        return ReceiverChannel(self._thread, channel)

    def statistics(self) -> ServerStatistics[str]:
        """As `netchannel.ReceiverServer.statistics`."""
        return self._server.statistics()


def sender_server() -> SenderServer:
    """The process-wide sender, started by the first call."""
    return SenderServer(*services.services.sender())


def receiver_server(address: str | None = None) -> ReceiverServer:
    """The process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    Raises:
        NetChannelError: it is bound to another address already.
        OSError: the address cannot be bound.
    """
    return ReceiverServer(*services.services.receiver(address))
