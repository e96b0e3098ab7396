"""The process-wide services as blocking objects, for code that has no event loop, such as a Spark task.

The names are those of `SenderServer`, `ReceiverServer` and their channels; each call waits for its result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from netchannel.errors import EndOfChannel, ProtocolError
from netchannel.servers.groups import SharedGroupClient
from netchannel.servers.reader import ChannelReader
from netchannel.servers.sender_channel import leave

from . import services
from .faces import (
    ChannelReaderFace,
    GroupChannelFace,
    GroupClientFace,
    ReceiverChannelFace,
    ReceiverServerFace,
    RetainedChannelFace,
    SenderChannelFace,
    SenderServerFace,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa

    from netchannel.tls import Tls
    from netchannel.values import CloseReport, FaultPolicy, Heads, Located, Message, Moment, Position, Sealed
    from netchannel.wire.codec import CodecName


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


class BlockingGroupChannel(BlockingSenderChannel, GroupChannelFace):
    """`GroupChannel` for threads without an event loop: the same names, and each call waits for its result."""

    def seal(self) -> Sealed:
        """As `GroupChannel.seal`."""
        return self._thread.wait(self._channel.seal())


class BlockingGroupClient(GroupClientFace):
    """`GroupClient` for threads without an event loop; a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def commit(self, application: str, epoch: int, winners: Sequence[Sealed], *, end: bool = False) -> bool:
        """As `GroupClient.commit`."""
        return self._thread.wait(self._client.commit(application, epoch, winners, end=end))

    def drop(self, application: str, epoch: int) -> None:
        """As `GroupClient.drop`."""
        self._thread.wait(self._client.drop(application, epoch))

    def last_epoch(self, application: str) -> int | None:
        """As `GroupClient.last_epoch`."""
        return self._thread.wait(self._client.last_epoch(application))

    def forget(self, application: str) -> None:
        """As `GroupClient.forget`."""
        self._thread.wait(self._client.forget(application))

    def close(self) -> None:
        """Ask no more: calls that wait raise `ChannelClosed`."""
        self._thread.call(self._client.close)


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
        item = self._thread.wait(self._channel.next_item(), self._channel.put_back)
        try:
            return self._channel.read(item)
        except ProtocolError as error:
            self._thread.tell(self._channel.unreadable, item.sequence, error)
            raise

    def ack(self, upto: int | Position) -> None:
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


class BlockingRetainedChannel(RetainedChannelFace):
    """`RetainedChannel` for threads without an event loop: the same names, and each call waits."""

    def heads(self, beyond: int | None = None) -> Heads:
        """As `RetainedChannel.heads`."""
        return self._thread.wait(self._channel.heads(beyond))

    def close(self, reason: str = "the consumer is done") -> None:
        """As `RetainedChannel.close`."""
        self._thread.wait(self._channel.close(reason))

    def detach(self) -> None:
        """As `RetainedChannel.detach`."""
        self._thread.wait(self._channel.detach())


class BlockingChannelReader(ChannelReaderFace):
    """`ChannelReader` for threads without an event loop: the same names, and each call waits; a context manager."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def heads(self, beyond: int | None = None, timeout: float | None = None) -> Heads:
        """As `ChannelReader.heads`; raises TimeoutError after ``timeout`` seconds."""
        return self._thread.wait(self._reader.heads_within(beyond, timeout))

    def schema(self, timeout: float | None = None) -> pa.Schema | None:
        """As `ChannelReader.schema`; raises TimeoutError after ``timeout`` seconds."""
        return self._thread.wait(self._reader.schema_within(timeout))

    def locate(
        self, first: Position | int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Located:
        """As `ChannelReader.locate`."""
        return self._thread.wait(self._reader.locate(first, max_rows=max_rows, max_bytes=max_bytes))

    def moment(self, at: datetime) -> Moment:
        """As `ChannelReader.moment`."""
        return self._thread.wait(self._reader.moment(at))

    def read(self, first: Position | int, until: int) -> Iterator[Any]:
        """As `ChannelReader.read`."""
        for message in self.read_messages(first, until):
            yield message.batch

    def read_messages(self, first: Position | int, until: int) -> Iterator[Message]:
        """As `ChannelReader.read_messages`. While what has come is decoded here, more comes."""
        thread, reader = self._thread, self._reader
        reading = thread.wait(reader.begin(first, until), reader.cancel)
        try:
            while chunks := thread.wait(reader.more(reading)):
                yield from reader.decoded(reading, chunks)
        finally:
            thread.tell(reader.cancel, reading)

    def hold(self, consumer: str, *, holder: str | None = None, fresh: bool = False) -> int:
        """As `ChannelReader.hold`."""
        return self._thread.wait(self._reader.hold(consumer, holder=holder, fresh=fresh))

    def ack(self, consumer: str, upto: Position | int) -> None:
        """As `ChannelReader.ack`."""
        self._thread.wait(self._reader.ack(consumer, upto))

    def forget(self, consumer: str) -> None:
        """As `ChannelReader.forget`."""
        self._thread.wait(self._reader.forget(consumer))

    def close(self) -> None:
        """As `ChannelReader.close`."""
        self._thread.wait(self._reader.close())


class BlockingSenderServer(SenderServerFace[BlockingSenderChannel, BlockingGroupChannel]):
    """The process-wide `SenderServer`."""

    face = BlockingSenderChannel
    group_face = BlockingGroupChannel


class BlockingReceiverServer(ReceiverServerFace[BlockingReceiverChannel, BlockingRetainedChannel]):
    """The process-wide `ReceiverServer`."""

    face = BlockingReceiverChannel
    retained_face = BlockingRetainedChannel


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


def group_client(
    to: str,
    channel_id: str,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> BlockingGroupClient:
    """A `GroupClient` on the process-wide thread; all that ask the same receiver share a connection to it."""
    thread, client = services.services.client(services.Trust(secret, tls))
    return BlockingGroupClient(thread, thread.call(SharedGroupClient, client, to, channel_id, fault))


def channel_reader(
    to: str,
    channel_id: str,
    *,
    codec: CodecName = "arrow",
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> BlockingChannelReader:
    """A reader of a channel that is kept at ``to``; returns at once. Settings as of `ChannelReader`.

    All readers of the process at one address, with one secret and TLS, share a connection to ask on.
    """
    thread, client = services.services.client(services.Trust(secret, tls))
    reader = ChannelReader.over(client, to, channel_id, codec=codec, fault=fault)
    return BlockingChannelReader(thread, thread.wait(reader.__aenter__()))
