"""The process-wide services for coroutines, whichever event loop they run on.

The names are those of `SenderServer`, `ReceiverServer` and their channels. What is awaited here runs on the services'
own thread; decoding happens on the caller's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from netchannel import services
from netchannel.errors import EndOfChannel
from netchannel.faces import (
    GroupChannelFace,
    GroupClientFace,
    ReceiverChannelFace,
    ReceiverServerFace,
    SenderChannelFace,
    SenderServerFace,
)
from netchannel.groups import SharedGroupClient
from netchannel.sender import leave

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from types import TracebackType

    import pyarrow as pa

    from netchannel.tls import Tls
    from netchannel.values import CloseReport, FaultPolicy, Message, Sealed

__all__ = [
    "GroupChannel",
    "GroupClient",
    "ReceiverChannel",
    "ReceiverServer",
    "SenderChannel",
    "SenderServer",
    "group_client",
    "receiver_server",
    "sender_server",
]


class SenderChannel(SenderChannelFace):
    """`netchannel.SenderChannel`, from any loop."""

    async def send(self, batch: Any, note: bytes = b"") -> None:
        """As `netchannel.SenderChannel.send`."""
        await self._thread.run(self._channel.send(batch, note))

    async def send_many(self, batches: Iterable[Any]) -> None:
        """As `netchannel.SenderChannel.send_many`. A generator runs here, and may use other channels."""
        if isinstance(batches, list | tuple):
            await self._thread.run(self._channel.send_many(batches))
            return
        ticket = None
        try:
            for batch in batches:
                if ticket is not None and ticket.error is not None:
                    break
                ticket = await self._thread.run(self._channel.take(batch), leave)
        except BaseException:
            leave(ticket)
            raise
        if ticket is not None:
            await self._thread.run(self._channel.committed(ticket))

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


class GroupChannel(SenderChannel, GroupChannelFace):
    """`netchannel.GroupChannel`, from any loop."""

    async def seal(self) -> Sealed:
        """As `netchannel.GroupChannel.seal`."""
        return await self._thread.run(self._channel.seal())


class GroupClient(GroupClientFace):
    """`netchannel.GroupClient`, from any loop; an async context manager."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def commit(
        self, application: str, epoch: int, winners: Sequence[Sealed], *, end: bool = False
    ) -> bool:
        """As `netchannel.GroupClient.commit`."""
        return await self._thread.run(self._client.commit(application, epoch, winners, end=end))

    async def drop(self, application: str, epoch: int) -> None:
        """As `netchannel.GroupClient.drop`."""
        await self._thread.run(self._client.drop(application, epoch))

    async def last_epoch(self, application: str) -> int | None:
        """As `netchannel.GroupClient.last_epoch`."""
        return await self._thread.run(self._client.last_epoch(application))

    def close(self) -> None:
        """Ask no more: calls that wait raise `ChannelClosed`."""
        self._thread.call(self._client.close)


class ReceiverChannel(ReceiverChannelFace):
    """`netchannel.ReceiverChannel`, from any loop; an async iterator."""

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


class SenderServer(SenderServerFace[SenderChannel, GroupChannel]):
    """The process-wide `netchannel.SenderServer`."""

    face = SenderChannel
    group_face = GroupChannel


class ReceiverServer(ReceiverServerFace[ReceiverChannel]):
    """The process-wide `netchannel.ReceiverServer`."""

    face = ReceiverChannel


def sender_server(*, secret: str | None = None, tls: Tls | None = None) -> SenderServer:
    """The process-wide sender, started by the first call, with that call's ``secret`` and ``tls``.

    Raises:
        NetChannelError: it was started with another secret or TLS.
    """
    return SenderServer(*services.services.sender(services.Trust(secret, tls)))


def receiver_server(
    address: str | None = None, *, secret: str | None = None, tls: Tls | None = None
) -> ReceiverServer:
    """The process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    ``secret`` and ``tls`` are those of the first call, too.

    Raises:
        NetChannelError: it is bound to another address already, or has another secret or TLS.
        OSError: the address cannot be bound.
    """
    return ReceiverServer(*services.services.receiver(address, services.Trust(secret, tls)))


def group_client(
    to: str,
    channel_id: str,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> GroupClient:
    """A `netchannel.GroupClient` on the process-wide thread, which shares its connection with all others."""
    thread, client = services.services.client(services.Trust(secret, tls))
    return GroupClient(thread, thread.call(SharedGroupClient, client, to, channel_id, fault))
