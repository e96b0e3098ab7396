"""The process-wide services as blocking objects, for code that has no event loop, such as a Spark task.

The names are those of `SenderServer`, `ReceiverServer` and their channels; each call waits for its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from netchannel import services
from netchannel.errors import EndOfChannel

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from netchannel.receiver import ReceiverChannel, ReceiverServer
    from netchannel.sender import SenderChannel, SenderServer
    from netchannel.services import ServiceThread
    from netchannel.values import ChannelStatistics, CloseReport, Message, Position, ServerStatistics


class BlockingSenderChannel:
    """`SenderChannel` for threads without an event loop: the same names, and each call waits for its result."""

    def __init__(self, thread: ServiceThread, channel: SenderChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str:
        """As `SenderChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> int:
        """As `SenderChannel.position`."""
        return self._channel.position

    def send(self, batch: Any, note: bytes = b"") -> None:
        """As `SenderChannel.send`."""
        self._thread.wait(self._channel.send(batch, note))

    def send_many(self, batches: Iterable[Any]) -> None:
        """As `SenderChannel.send_many`."""
        self._thread.wait(self._channel.send_many(batches))

    def flush(self) -> None:
        """As `SenderChannel.flush`."""
        self._thread.wait(self._channel.flush())

    def attached(self) -> tuple[int, bytes]:
        """As `SenderChannel.attached`."""
        return self._thread.wait(self._channel.attached())

    def close(self, grace: float | None = None) -> CloseReport:
        """As `SenderChannel.close`."""
        return self._thread.wait(self._channel.close(grace))

    def abort(self, error: str | BaseException) -> None:
        """As `SenderChannel.abort`."""
        self._thread.wait(self._channel.abort(error))

    def detach(self) -> None:
        """As `SenderChannel.detach`."""
        self._thread.wait(self._channel.detach())

    def statistics(self) -> ChannelStatistics:
        """As `SenderChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingReceiverChannel:
    """`ReceiverChannel` for threads without an event loop: the same names, and each call waits; an iterator."""

    def __init__(self, thread: ServiceThread, channel: ReceiverChannel) -> None:
        self._thread = thread
        self._channel = channel

    @property
    def id(self) -> str:
        """The channel's id."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `ReceiverChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> Position | None:
        """As `ReceiverChannel.position`."""
        return self._channel.position

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except EndOfChannel:
            raise StopIteration from None

    def recv(self) -> Any:
        """As `ReceiverChannel.recv`."""
        return self.recv_message().batch

    def recv_message(self) -> Message:
        """As `ReceiverChannel.recv_message`."""
        return self._channel.read(self._thread.wait(self._channel.next_item(), self._channel.put_back))

    def ack(self, upto: int) -> None:
        """As `ReceiverChannel.ack`."""
        self._thread.wait(self._channel.ack(upto))

    def schema(self) -> pa.Schema | None:
        """As `ReceiverChannel.schema`."""
        return self._thread.wait(self._channel.schema())

    def close(self, reason: str = "the consumer is done") -> None:
        """As `ReceiverChannel.close`."""
        self._thread.wait(self._channel.close(reason))

    def detach(self) -> None:
        """As `ReceiverChannel.detach`."""
        self._thread.wait(self._channel.detach())

    def statistics(self) -> ChannelStatistics:
        """As `ReceiverChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingSenderServer:
    """The process-wide `SenderServer`."""

    def __init__(self, thread: ServiceThread, server: SenderServer) -> None:
        self._thread = thread
        self._server = server

    def register_channel(self, channel_id: str, to: str, **settings: Any) -> BlockingSenderChannel:
        """As `SenderServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, to, **settings)
        return BlockingSenderChannel(self._thread, channel)

    def statistics(self) -> ServerStatistics[tuple[str, str]]:
        """As `SenderServer.statistics`."""
        return self._server.statistics()


class BlockingReceiverServer:
    """The process-wide `ReceiverServer`."""

    def __init__(self, thread: ServiceThread, server: ReceiverServer) -> None:
        self._thread = thread
        self._server = server

    @property
    def address(self) -> str:
        """As `ReceiverServer.address`."""
        return self._server.address

    def register_channel(self, channel_id: str, **settings: Any) -> BlockingReceiverChannel:
        """As `ReceiverServer.register_channel`."""
        channel = self._thread.call(self._server.register_channel, channel_id, **settings)
        return BlockingReceiverChannel(self._thread, channel)

    def statistics(self) -> ServerStatistics[str]:
        """As `ReceiverServer.statistics`."""
        return self._server.statistics()


def sender_server() -> BlockingSenderServer:
    """The process-wide sender, started by the first call."""
    return BlockingSenderServer(*services.services.sender())


def receiver_server(address: str | None = None) -> BlockingReceiverServer:
    """The process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    Raises:
        NetChannelError: it is bound to another address already.
        OSError: the address cannot be bound.
    """
    return BlockingReceiverServer(*services.services.receiver(address))
