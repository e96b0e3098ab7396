"""The process-wide services as blocking objects, for code that has no event loop, such as a Spark task.

The names are those of `SenderServer`, `ReceiverServer` and their channels; each call waits for its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from netchannel import services
from netchannel.errors import EndOfChannel
from netchannel.faces import ReceiverChannelFace, ReceiverServerFace, SenderChannelFace, SenderServerFace
from netchannel.sender import leave

if TYPE_CHECKING:
    from collections.abc import Iterable

    import pyarrow as pa

    from netchannel.tls import Tls
    from netchannel.values import CloseReport, Message


class BlockingSenderChannel(SenderChannelFace):
    """`SenderChannel` for threads without an event loop: the same names, and each call waits for its result."""

    def send(self, batch: Any, note: bytes = b"") -> None:
        """As `SenderChannel.send`."""
        self._thread.wait(self._channel.send(batch, note))

    def send_many(self, batches: Iterable[Any]) -> None:
        """As `SenderChannel.send_many`. A generator runs here, and may use other channels."""
        if isinstance(batches, list | tuple):
            self._thread.wait(self._channel.send_many(batches))
            return
        ticket = None
        try:
            for batch in batches:
                if ticket is not None and ticket.error is not None:
                    break
                ticket = self._thread.wait(self._channel.take(batch), leave)
        except BaseException:
            leave(ticket)
            raise
        if ticket is not None:
            self._thread.wait(self._channel.committed(ticket))

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


class BlockingReceiverChannel(ReceiverChannelFace):
    """`ReceiverChannel` for threads without an event loop: the same names, and each call waits; an iterator."""

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


class BlockingSenderServer(SenderServerFace[BlockingSenderChannel]):
    """The process-wide `SenderServer`."""

    face = BlockingSenderChannel


class BlockingReceiverServer(ReceiverServerFace[BlockingReceiverChannel]):
    """The process-wide `ReceiverServer`."""

    face = BlockingReceiverChannel


def sender_server(*, secret: str | None = None, tls: Tls | None = None) -> BlockingSenderServer:
    """The process-wide sender, started by the first call, with that call's ``secret`` and ``tls``.

    Raises:
        NetChannelError: it was started with another secret or TLS.
    """
    return BlockingSenderServer(*services.services.sender(services.Trust(secret, tls)))


def receiver_server(
    address: str | None = None, *, secret: str | None = None, tls: Tls | None = None
) -> BlockingReceiverServer:
    """The process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    ``secret`` and ``tls`` are those of the first call, too.

    Raises:
        NetChannelError: it is bound to another address already, or has another secret or TLS.
        OSError: the address cannot be bound.
    """
    return BlockingReceiverServer(*services.services.receiver(address, services.Trust(secret, tls)))
