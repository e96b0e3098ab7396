"""The process-wide services as blocking objects, for code without an event loop (a Spark task).

The names are those of `netchannel.SenderServer`, `netchannel.ReceiverServer` and their channels; each call waits for
its result, and decoding happens on the caller's thread.

Written by ``make faces``: to change it, edit `netchannel.servers` or tests/development/faces.py.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, Self

from netchannel.errors import EndOfChannel, ProtocolError
from netchannel.process import services
from netchannel.servers import call_client, group_channels, reader, sender_channel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Sequence
    from datetime import datetime
    from types import TracebackType

    import pyarrow as pa

    from netchannel.errors import NetChannelError
    from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy, StagingPolicy
    from netchannel.servers import call_service, receiver, receiver_channel, retained_channels, sender
    from netchannel.statistics import (
        ReceiverChannelStatistics,
        ReceiverServerStatistics,
        SenderChannelStatistics,
        SenderServerStatistics,
    )
    from netchannel.tls import Tls
    from netchannel.values import CloseReport, Group, Heads, Located, Message, Moment, Position, Sealed
    from netchannel.wire.codec import CodecName

__all__ = [
    "BlockingCaller",
    "BlockingChannelReader",
    "BlockingGroupChannel",
    "BlockingGroupClient",
    "BlockingReceiverChannel",
    "BlockingReceiverServer",
    "BlockingRetainedChannel",
    "BlockingSenderChannel",
    "BlockingSenderServer",
    "BlockingService",
    "caller",
    "channel_reader",
    "group_client",
    "receiver_server",
    "sender_server",
]


class BlockingSenderChannel:
    """`netchannel.SenderChannel`, from any thread: the same names, and each call waits."""

    def __init__(self, thread: services.ServiceThread, channel: sender_channel.SenderChannel) -> None:
        self._thread = thread
        self._channel = channel

    def _repr_html_(self) -> str:
        """As `netchannel.SenderChannel._repr_html_`."""
        return self._thread.call(self._channel._repr_html_)

    @property
    def id(self) -> str:
        """As `netchannel.SenderChannel.id`."""
        return self._channel.id

    @property
    def stream(self) -> str:
        """As `netchannel.SenderChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> int:
        """As `netchannel.SenderChannel.position`."""
        return self._channel.position

    def allocate(self, size: int) -> memoryview:
        """As `netchannel.SenderChannel.allocate`."""
        return self._thread.call(self._channel.allocate, size)

    def send(self, batch: Any, note: bytes = b"") -> None:
        """As `netchannel.SenderChannel.send`."""
        self._thread.wait(self._channel.send(batch, note))

    def send_many(self, batches: Iterable[Any]) -> None:
        """As `netchannel.SenderChannel.send_many`. A generator runs here, and may use other channels."""
        if isinstance(batches, list | tuple):
            self._thread.wait(self._channel.send_many(batches))
            return
        ticket = None
        try:
            for batch in batches:
                if ticket is not None and ticket.error is not None:
                    break
                ticket = self._thread.wait(self._channel.take(batch), sender_channel.leave)
        except BaseException:
            sender_channel.leave(ticket)
            raise
        if ticket is not None:
            self._thread.wait(self._channel.committed(ticket))

    def flush(self) -> None:
        """As `netchannel.SenderChannel.flush`."""
        self._thread.wait(self._channel.flush())

    def attached(self) -> tuple[int, bytes]:
        """As `netchannel.SenderChannel.attached`."""
        return self._thread.wait(self._channel.attached())

    def recv_upquery(self) -> bytes:
        """As `netchannel.SenderChannel.recv_upquery`."""
        taken = self._thread.wait(self._channel.next_upquery(), self._channel.put_back)
        return taken.body

    def close(self, grace: float | None = None) -> CloseReport:
        """As `netchannel.SenderChannel.close`."""
        return self._thread.wait(self._channel.close(grace))

    def abort(self, error: str | BaseException) -> None:
        """As `netchannel.SenderChannel.abort`."""
        self._thread.wait(self._channel.abort(error))

    def detach(self) -> None:
        """As `netchannel.SenderChannel.detach`."""
        self._thread.wait(self._channel.detach())

    def statistics(self) -> SenderChannelStatistics:
        """As `netchannel.SenderChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingGroupChannel(BlockingSenderChannel):
    """`netchannel.GroupChannel`, from any thread: the same names, and each call waits."""

    _channel: group_channels.GroupChannel

    @property
    def group(self) -> Group:
        """As `netchannel.GroupChannel.group`."""
        return self._channel.group

    @property
    def id(self) -> str:
        """As `netchannel.GroupChannel.id`."""
        return self._channel.id

    def seal(self) -> Sealed:
        """As `netchannel.GroupChannel.seal`."""
        return self._thread.wait(self._channel.seal())

    def close(self, grace: float | None = None) -> CloseReport:
        """As `netchannel.GroupChannel.close`."""
        return self._thread.wait(self._channel.close(grace))

    def detach(self) -> None:
        """As `netchannel.GroupChannel.detach`."""
        self._thread.wait(self._channel.detach())


class BlockingGroupClient:
    """`netchannel.GroupClient`, from any thread: the same names, and each call waits; a context manager."""

    def __init__(self, thread: services.ServiceThread, client: group_channels.SharedGroupClient) -> None:
        self._thread = thread
        self._client = client

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def error(self) -> NetChannelError | None:
        """As `netchannel.GroupClient.error`."""
        return self._client.error

    def commit(self, application: str, epoch: int, winners: Sequence[Sealed], *, end: bool = False) -> bool:
        """As `netchannel.GroupClient.commit`."""
        return self._thread.wait(self._client.commit(application, epoch, winners, end=end))

    def drop(self, application: str, epoch: int) -> None:
        """As `netchannel.GroupClient.drop`."""
        self._thread.wait(self._client.drop(application, epoch))

    def last_epoch(self, application: str) -> int | None:
        """As `netchannel.GroupClient.last_epoch`."""
        return self._thread.wait(self._client.last_epoch(application))

    def waits_for(self, application: str) -> str | None:
        """As `netchannel.GroupClient.waits_for`."""
        return self._thread.wait(self._client.waits_for(application))

    def forget(self, application: str) -> None:
        """As `netchannel.GroupClient.forget`."""
        self._thread.wait(self._client.forget(application))

    def close(self) -> None:
        """Stop asking: calls that wait raise `ChannelClosed`."""
        self._thread.call(self._client.close)


class BlockingReceiverChannel:
    """`netchannel.ReceiverChannel`, from any thread: the same names, and each call waits; an iterator."""

    def __init__(self, thread: services.ServiceThread, channel: receiver_channel.ReceiverChannel) -> None:
        self._thread = thread
        self._channel = channel

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            return self.recv()
        except EndOfChannel:
            raise StopIteration from None

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """The rest of the stream, for libraries that read Arrow: a batch for each message, as of `recv`."""
        import pyarrow

        schema = self.schema()
        if schema is None:
            raise TypeError(f"channel {self.id!r} has codec 'bytes': its messages are not Arrow batches")
        return pyarrow.RecordBatchReader.from_batches(schema, self).__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """As `netchannel.ReceiverChannel._repr_html_`."""
        return self._thread.call(self._channel._repr_html_)

    @property
    def id(self) -> str:
        """As `netchannel.ReceiverChannel.id`."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `netchannel.ReceiverChannel.stream`."""
        return self._channel.stream

    @property
    def position(self) -> Position | None:
        """As `netchannel.ReceiverChannel.position`."""
        return self._channel.position

    def recv(self) -> Any:
        """As `netchannel.ReceiverChannel.recv`."""
        message = self.recv_message()
        return message.batch

    def recv_message(self) -> Message:
        """As `netchannel.ReceiverChannel.recv_message`."""
        item = self._thread.wait(self._channel.next_item(), self._channel.put_back)
        try:
            return self._channel.read(item)
        except ProtocolError as error:
            self._thread.tell(self._channel.unreadable, item.sequence, error)
            raise

    def ack(self, upto: int | Position) -> None:
        """As `netchannel.ReceiverChannel.ack`."""
        self._thread.wait(self._channel.ack(upto))

    def upquery(self, body: bytes) -> bool:
        """As `netchannel.ReceiverChannel.upquery`."""
        return self._thread.call(self._channel.upquery, body)

    def schema(self) -> pa.Schema | None:
        """As `netchannel.ReceiverChannel.schema`."""
        return self._thread.wait(self._channel.schema())

    def close(self, reason: str = "the consumer is done", grace: float | None = None) -> None:
        """As `netchannel.ReceiverChannel.close`."""
        self._thread.wait(self._channel.close(reason, grace))

    def detach(self, grace: float | None = None) -> None:
        """As `netchannel.ReceiverChannel.detach`."""
        self._thread.wait(self._channel.detach(grace))

    def statistics(self) -> ReceiverChannelStatistics:
        """As `netchannel.ReceiverChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingRetainedChannel:
    """`netchannel.RetainedChannel`, from any thread: the same names, and each call waits."""

    def __init__(self, thread: services.ServiceThread, channel: retained_channels.RetainedChannel) -> None:
        self._thread = thread
        self._channel = channel

    def _repr_html_(self) -> str:
        """As `netchannel.RetainedChannel._repr_html_`."""
        return self._thread.call(self._channel._repr_html_)

    @property
    def id(self) -> str:
        """As `netchannel.RetainedChannel.id`."""
        return self._channel.id

    @property
    def stream(self) -> str | None:
        """As `netchannel.RetainedChannel.stream`."""
        return self._channel.stream

    @property
    def latest(self) -> Heads:
        """As `netchannel.RetainedChannel.latest`."""
        return self._thread.call(lambda: self._channel.latest)

    def heads(self, beyond: int | None = None) -> Heads:
        """As `netchannel.RetainedChannel.heads`."""
        return self._thread.wait(self._channel.heads(beyond))

    def upquery(self, body: bytes) -> bool:
        """As `netchannel.RetainedChannel.upquery`."""
        return self._thread.call(self._channel.upquery, body)

    def close(self, reason: str = "the consumer is done", grace: float | None = None) -> None:
        """As `netchannel.RetainedChannel.close`."""
        self._thread.wait(self._channel.close(reason, grace))

    def detach(self, grace: float | None = None) -> None:
        """As `netchannel.RetainedChannel.detach`."""
        self._thread.wait(self._channel.detach(grace))

    def statistics(self) -> ReceiverChannelStatistics:
        """As `netchannel.RetainedChannel.statistics`."""
        return self._thread.call(self._channel.statistics)


class BlockingChannelReader:
    """`netchannel.ChannelReader`, from any thread: the same names, and each call waits; a context manager."""

    def __init__(self, thread: services.ServiceThread, reader: reader.ChannelReader) -> None:
        self._thread = thread
        self._reader = reader

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def id(self) -> str:
        """As `netchannel.ChannelReader.id`."""
        return self._reader.id

    def close(self) -> None:
        """As `netchannel.ChannelReader.close`."""
        self._thread.wait(self._reader.close())

    @property
    def latest(self) -> Heads | None:
        """As `netchannel.ChannelReader.latest`."""
        return self._reader.latest

    @property
    def error(self) -> NetChannelError | None:
        """As `netchannel.ChannelReader.error`."""
        return self._reader.error

    def heads(self, beyond: int | None = None, timeout: float | None = None) -> Heads:
        """As `netchannel.ChannelReader.heads`; raises TimeoutError after ``timeout`` seconds."""
        return self._thread.wait(self._reader.heads_within(beyond, timeout))

    def schema(self, timeout: float | None = None) -> pa.Schema | None:
        """As `netchannel.ChannelReader.schema`; raises TimeoutError after ``timeout`` seconds."""
        return self._thread.wait(self._reader.schema_within(timeout))

    def locate(
        self, first: Position | int, *, max_rows: int | None = None, max_bytes: int | None = None
    ) -> Located:
        """As `netchannel.ChannelReader.locate`."""
        return self._thread.wait(self._reader.locate(first, max_rows=max_rows, max_bytes=max_bytes))

    def moment(self, at: datetime) -> Moment:
        """As `netchannel.ChannelReader.moment`."""
        return self._thread.wait(self._reader.moment(at))

    def read(self, first: Position | int, until: int) -> Generator[Any, None, None]:
        """As `netchannel.ChannelReader.read`."""
        with closing(self._read(first, until)) as runs:
            for run in runs:
                yield from run

    def read_messages(self, first: Position | int, until: int) -> Generator[Message, None, None]:
        """As `netchannel.ChannelReader.read_messages`. While messages are decoded here, more arrive."""
        with closing(self._read_messages(first, until)) as runs:
            for run in runs:
                yield from run

    def hold(self, consumer: str, *, holder: str | None = None, fresh: bool = False) -> int:
        """As `netchannel.ChannelReader.hold`."""
        return self._thread.wait(self._reader.hold(consumer, holder=holder, fresh=fresh))

    def ack(self, consumer: str, upto: Position | int) -> None:
        """As `netchannel.ChannelReader.ack`."""
        self._thread.wait(self._reader.ack(consumer, upto))

    def forget(self, consumer: str) -> None:
        """As `netchannel.ChannelReader.forget`."""
        self._thread.wait(self._reader.forget(consumer))

    def _read(self, first: Position | int, until: int) -> Generator[Iterator[Any], None, None]:
        with closing(self._read_messages(first, until)) as runs:
            for messages in runs:
                yield (message.batch for message in messages)

    def _read_messages(self, first: Position | int, until: int) -> Generator[Iterator[Message], None, None]:
        thread, there = self._thread, self._reader
        reading = thread.wait(there.begin(first, until), there.cancel)
        try:
            while chunks := thread.wait(there.more(reading)):
                yield there.decoded(reading, chunks)
        finally:
            thread.tell(there.cancel, reading)


class BlockingCaller:
    """`netchannel.Caller`, from any thread: the same names, and each call waits; a context manager."""

    def __init__(self, thread: services.ServiceThread, caller: call_client.Caller) -> None:
        self._thread = thread
        self._caller = caller

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """As `netchannel.Caller.address`."""
        return self._caller.address

    def close(self) -> None:
        """As `netchannel.Caller.close`."""
        self._thread.wait(self._caller.close())

    def call(self, service_id: str, body: bytes, *, deadline_s: float) -> bytes:
        """As `netchannel.Caller.call`."""
        return self._thread.wait(self._caller.call(service_id, body, deadline_s=deadline_s))


class BlockingService:
    """`netchannel.Service`, from any thread: the same names, and each call waits; a context manager."""

    def __init__(self, thread: services.ServiceThread, service: call_service.Service) -> None:
        self._thread = thread
        self._service = service

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def id(self) -> str:
        """As `netchannel.Service.id`."""
        return self._service.id

    @property
    def error(self) -> NetChannelError | None:
        """As `netchannel.Service.error`."""
        return self._service.error

    def close(self) -> None:
        """As `netchannel.Service.close`."""
        self._thread.wait(self._service.close())


class BlockingSenderServer:
    """`netchannel.SenderServer`, on the services' thread."""

    def __init__(self, thread: services.ServiceThread, server: sender.SenderServer) -> None:
        self._thread = thread
        self._server = server

    def register_channel(
        self,
        channel_id: str,
        to: str,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        stream: str | None = None,
        replayable: bool = False,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> BlockingSenderChannel:
        """As `netchannel.SenderServer.register_channel`."""
        return BlockingSenderChannel(
            self._thread,
            self._thread.call(
                self._server.register_channel,
                channel_id,
                to,
                codec=codec,
                schema=schema,
                stream=stream,
                replayable=replayable,
                buffer=buffer,
                fault=fault,
            ),
        )

    def register_attempt(
        self,
        channel_id: str,
        to: str,
        group: Group,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> BlockingGroupChannel:
        """As `netchannel.SenderServer.register_attempt`."""
        return BlockingGroupChannel(
            self._thread,
            self._thread.call(
                self._server.register_attempt,
                channel_id,
                to,
                group,
                codec=codec,
                schema=schema,
                buffer=buffer,
                fault=fault,
            ),
        )

    def statistics(self) -> SenderServerStatistics:
        """As `netchannel.SenderServer.statistics`."""
        return self._server.statistics()


class BlockingReceiverServer:
    """`netchannel.ReceiverServer`, on the services' thread."""

    def __init__(self, thread: services.ServiceThread, server: receiver.ReceiverServer) -> None:
        self._thread = thread
        self._server = server

    @property
    def address(self) -> str:
        """As `netchannel.ReceiverServer.address`."""
        return self._server.address

    def register_channel(
        self,
        channel_id: str,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        ack: Literal["receipt", "explicit"] = "receipt",
        resume_from: Position | int | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> BlockingReceiverChannel:
        """As `netchannel.ReceiverServer.register_channel`."""
        return BlockingReceiverChannel(
            self._thread,
            self._thread.call(
                self._server.register_channel,
                channel_id,
                codec=codec,
                schema=schema,
                ack=ack,
                resume_from=resume_from,
                buffer=buffer,
                fault=fault,
            ),
        )

    def register_staged_channel(
        self,
        channel_id: str,
        policy: StagingPolicy,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        ack: Literal["receipt", "explicit"] = "receipt",
        resume_from: Position | int | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> BlockingReceiverChannel:
        """As `netchannel.ReceiverServer.register_staged_channel`."""
        return BlockingReceiverChannel(
            self._thread,
            self._thread.call(
                self._server.register_staged_channel,
                channel_id,
                policy,
                codec=codec,
                schema=schema,
                ack=ack,
                resume_from=resume_from,
                buffer=buffer,
                fault=fault,
            ),
        )

    def retain_channel(
        self,
        channel_id: str,
        policy: RetainPolicy,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> BlockingRetainedChannel:
        """As `netchannel.ReceiverServer.retain_channel`."""
        return BlockingRetainedChannel(
            self._thread,
            self._thread.call(
                self._server.retain_channel,
                channel_id,
                policy,
                codec=codec,
                schema=schema,
                buffer=buffer,
                fault=fault,
            ),
        )

    def register_service(
        self, service_id: str, answer: Callable[[bytes], bytes | Awaitable[bytes]]
    ) -> BlockingService:
        """As `netchannel.ReceiverServer.register_service`."""
        return BlockingService(
            self._thread, self._thread.call(self._server.register_service, service_id, answer)
        )

    def statistics(self) -> ReceiverServerStatistics:
        """As `netchannel.ReceiverServer.statistics`."""
        return self._server.statistics()


def sender_server(
    *, secret: str | None = None, tls: Tls | None = None, shared_memory: int | None = None
) -> BlockingSenderServer:
    """Return the process-wide sender, which the first call starts. Settings are as for `netchannel.SenderServer`.

    Raises:
        NetChannelError: the first call had another secret, TLS or ``shared_memory``.
    """
    settings = services.Settings(secret, tls, shared_memory=shared_memory)
    return BlockingSenderServer(*services.services.sender(settings))


def receiver_server(
    address: str | None = None,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
    message_limit: int | None = None,
    shared_memory: int | None = None,
) -> BlockingReceiverServer:
    """Return the process-wide receiver. The first call binds ``address`` (a free port of 127.0.0.1 if None).

    The settings of the first call apply to all calls; they are those of `netchannel.ReceiverServer`.

    Raises:
        NetChannelError: the receiver is already bound to another address, or has other settings.
        OSError: the address cannot be bound.
    """
    settings = services.Settings(secret, tls, message_limit, shared_memory)
    return BlockingReceiverServer(*services.services.receiver(address, settings))


def group_client(
    to: str,
    channel_id: str,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> BlockingGroupClient:
    """Return a `netchannel.GroupClient` on the process-wide thread. All clients of a receiver share a connection."""
    thread, client = services.services.client(services.Trust(secret, tls))
    return BlockingGroupClient(
        thread, thread.call(group_channels.SharedGroupClient, client, to, channel_id, fault)
    )


def caller(
    address: str,
    *,
    secret: str | None = None,
    tls: Tls | None = None,
) -> BlockingCaller:
    """Return a `netchannel.Caller` on the process-wide thread. All callers of a node share a connection."""
    thread, client = services.services.call_client(services.Trust(secret, tls))
    made = call_client.Caller.from_client(client, address)
    return BlockingCaller(thread, thread.wait(made.__aenter__()))


def channel_reader(
    to: str,
    channel_id: str,
    *,
    codec: CodecName = "arrow",
    secret: str | None = None,
    tls: Tls | None = None,
    fault: FaultPolicy | None = None,
) -> BlockingChannelReader:
    """Return a reader of a channel that is retained at ``to``, with the settings of `netchannel.ChannelReader`.

    Returns at once. All readers of the process with the same address, secret and TLS share a connection for their
    requests.
    """
    thread, client = services.services.client(services.Trust(secret, tls))
    made = reader.ChannelReader.from_client(client, to, channel_id, codec=codec, fault=fault)
    return BlockingChannelReader(thread, thread.wait(made.__aenter__()))
