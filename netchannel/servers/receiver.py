"""`ReceiverServer` listens for senders, and makes the channels."""

from __future__ import annotations

import asyncio
import resource
import secrets
import sys
import uuid
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Self

from netchannel.address import parse_address
from netchannel.core.groups.staged_channel import StagedChannel
from netchannel.core.receiving.node_membership import NodeMembership
from netchannel.core.receiving.receiver_core import ReceiverCore
from netchannel.core.replay.read_server import serve_reads
from netchannel.core.replay.retained_inbound import RetainedInbound
from netchannel.errors import NetChannelError
from netchannel.log_texts import log
from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy, StagingPolicy, Timing
from netchannel.statistics import ReceiverServerStatistics
from netchannel.storage import StagingStore
from netchannel.storage.groups.staged_files import StagedFiles
from netchannel.tls import Credentials, Tls
from netchannel.transports.host_memory import (
    SHARED_MEMORY,
    HostMemory,
    check_shared_memory,
    make_shared_memory,
)
from netchannel.transports.ports import DataPorts, parse_data_ports
from netchannel.transports.runner import LinkProtocol, Runner
from netchannel.transports.schemes import check, listen, scheme_of
from netchannel.transports.tls_transport import check_scheme, tls_protocol_factory
from netchannel.transports.unix import listen_privately
from netchannel.values import LARGEST_SIZE, Position, check_channel_id, check_given, check_kind
from netchannel.wire.codec import CodecName, make_decoder

from .call_service import Service
from .identity import encoded, node_name, shown, wall_us
from .receiver_channel import ReceiverChannel, statistics_of
from .retained_channels import RetainedChannel, keep_stream
from .waiter import Changes, check_loop

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from types import TracebackType

    import pyarrow as pa

    from netchannel.core.receiving.inbound import InboundChannel
    from netchannel.transports import Listener, MakeProtocol
    from netchannel.wire.codec import Decoder

MESSAGE_LIMIT = 1 << 30
_BUFFER = BufferPolicy(max_bytes=8 << 20)
_SPARE_PART = 4
"""The part of ``max_staged_bytes``, a fourth, that may be files kept to be written again."""


class ReceiverServer:
    """All streams that a process receives; an async context manager that listens at one address.

    ``listen`` is ``host:port`` (port 0 selects a free port), ``unix:/path``, ``mem:name``, or an address of a
    registered scheme (`netchannel.transports.register`); ``advertise`` is the address at which others reach the server,
    if it differs. Data connections use the address that the sender dialed, or ``data_ports``: a range
    (``"40000-40999"``), or ``"ephemeral"`` for a new port for each. ``message_limit`` is the size of the largest
    accepted message, in bytes. ``secret`` must match the senders'. With ``tls`` all connections are TLS, and every
    sender must show a certificate. ``max_connections`` bounds the number of control and data connections; None is three
    quarters of the files that the process may have open. ``congestion_control`` is as for a `SenderServer`, for streams
    that are read from this server. Senders of the same user on this host may each share at most ``shared_memory`` bytes
    with this process; 0: none. With ``tls`` no memory is shared.

    Several processes can share one address. The server with that address has ``members=``, a ``unix:/path``, and
    redirects senders to the other processes. These have ``node=`` with the same path, and their own ports at the same
    host.

    On leaving the context its channels are detached: their senders keep unacknowledged messages for a successor.
    """

    def __init__(
        self,
        listen: str = "127.0.0.1:0",
        *,
        advertise: str | None = None,
        data_ports: str | None = None,
        secret: str | None = None,
        tls: Tls | None = None,
        message_limit: int = MESSAGE_LIMIT,
        max_connections: int | None = None,
        members: str | None = None,
        node: str | None = None,
        congestion_control: str | None = "cubic",
        shared_memory: int = SHARED_MEMORY,
        timing: Timing | None = None,
    ) -> None:
        check_kind("listen", listen, str)
        check_kind("secret", secret, str)
        check_kind("tls", tls, Tls)
        check_kind("timing", timing, Timing)
        check_kind("message_limit", message_limit, int)
        check_kind("max_connections", max_connections, int)
        check_shared_memory(shared_memory)
        if tls is not None:
            check_scheme(listen)
        if not 1 <= message_limit <= LARGEST_SIZE:
            raise ValueError(f"message_limit is {message_limit}: expected bytes, from 1 to {LARGEST_SIZE}")
        if advertise is not None:
            check(advertise)
        if max_connections is not None and max_connections < 2:
            raise ValueError(
                f"max_connections is {max_connections}: a channel needs 2 connections, control and data"
            )
        _check_node(listen, advertise, members, node)
        self._listen = listen
        self._members = members
        self._node = node
        self._advertise = advertise
        self._data_ports = None if data_ports is None else _data_ports(listen, data_ports)
        self._secret = secret
        self._credentials = None if tls is None else Credentials(tls, "receiver")
        self._message_limit = message_limit
        self._max_connections = max_connections
        self._congestion_control = congestion_control
        self._shared_memory = 0 if tls is not None else shared_memory
        self._host_memory: HostMemory | None = None
        self._timing = timing or Timing()
        self._core: ReceiverCore
        self._listener: Listener
        self._member_listener: Listener | None = None
        self._ports: DataPorts | None = None
        self._runner: Runner | None = None
        self._services: dict[str, Service] = {}

    def __repr__(self) -> str:
        address = self._listen if self._runner is None else self.address
        return shown(self, repr(address), "not running" if self._runner is None else "running")

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise NetChannelError(
                f"this ReceiverServer is already running, at {self.address}: make a new one"
            )
        self._core = ReceiverCore(
            node_name("receiver"),
            self._timing,
            wall_us,
            secrets.token_bytes,
            encoded(self._secret),
            message_limit=self._message_limit,
            max_connections=self._max_connections or _most_connections(),
        )
        serve_reads(self._core)
        self._core.shared_memory = self._host_memory = make_shared_memory(self._shared_memory)
        self._core.sharing_is_off = self._credentials is None and self._shared_memory == 0
        runner = Runner(self._core, self._congestion_control)
        make_protocol: MakeProtocol = partial(LinkProtocol, runner, self._core.accept)
        if self._credentials is not None:
            make_protocol = tls_protocol_factory(self._credentials, make_protocol)
        self._listener = await listen(self._listen, make_protocol)
        try:
            self._form_node(runner)
        except OSError:
            self._listener.close()
            raise
        if self._data_ports is not None:
            self._ports = DataPorts(*self._data_ports, make_protocol)
            self._core.open_requests.offers.lease = self._ports.lease
        self._runner = runner
        return self

    def _form_node(self, runner: Runner) -> None:
        """Take members, or be one; among themselves they do without TLS, over a socket of this user's."""
        if self._members is not None:
            accept = self._core.accept_member
            self._member_listener = listen_privately(self._members, lambda: LinkProtocol(runner, accept))
        if self._node is not None:
            self._core.node = NodeMembership(
                self._core, self._core.registry, self._node, _port(self._advertise or self._listener.address)
            )
            self._core.node.join(runner.clock())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        for service in list(self._core.services.offered.values()):
            if isinstance(service, RetainedInbound):
                service.detach(runner.clock())
        await self._detach_services()
        for channel in list(self._core.channels.values()):
            if len(channel.queue) and not (channel.explicit or channel.unsettled):
                log.warning(
                    "channel %s: its server left %d acknowledged messages unread, from number %d on",
                    channel.id, len(channel.queue), channel.position,
                )  # fmt: skip
            channel.detach(runner.clock())
        self._core.open_requests.clear()
        for listener in self._listening():
            listener.close()
        try:
            await self._core_left()
        finally:
            if self._ports is not None:
                await self._ports.stop()
            for listener in self._listening():
                await listener.stop()
            await runner.stop()
            if self._host_memory is not None:
                self._host_memory.close()

    async def _detach_services(self) -> None:
        services = list(self._services.values())
        if services:  # to gather nothing makes an event loop where none is known
            await asyncio.gather(*(service.detach() for service in services))

    async def _core_left(self) -> None:
        """Senders of channels that are over hang up once they are notified, or are disconnected."""
        done = Changes()
        self._core.connections.on_farewells_done = done.notify
        while self._core.connections.farewells:
            await done.wait()

    def descriptors(self) -> list[int]:
        """File descriptors of all its sockets, e.g. to close them in a forked child."""
        if self._runner is None:
            return []
        shared = [] if self._host_memory is None else self._host_memory.descriptors()
        return [
            *self._runner.descriptors(),
            *shared,
            *(descriptor for listener in self._listening() for descriptor in listener.descriptors()),
        ]

    def _listening(self) -> list[Listener]:
        return [self._listener] if self._member_listener is None else [self._listener, self._member_listener]

    @property
    def address(self) -> str:
        """The address at which senders reach this server."""
        self._running()
        return self._advertise or self._listener.address

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
    ) -> ReceiverChannel:
        """Create a channel; return at once, with or without a sender.

        Args:
            channel_id: 1 to 255 bytes of printable UTF-8; the sender registers the same id.
            codec: the same as the sender's.
            schema: the expected schema (default: the sender's).
            ack: ``receipt`` acknowledges a message once it is in the queue of this process, ``explicit`` when `ack` is
                called.
            resume_from: the first message to receive: a `Position` of an earlier consumer, or a number, which is unsafe
                because it may refer to another stream. None starts at the oldest unacknowledged message.
            buffer: the bound of received, unread messages; above it the sender has to wait.
            fault: how long to wait for an absent sender.

        Raises:
            ChannelInUse: the id is registered here.
            ValueError: the buffer is one that only senders have.
        """
        self._check(channel_id, buffer, fault)
        _check_ack(ack)
        decoder = make_decoder(codec, schema)
        self._core.check_free(channel_id)
        core = self._register(
            channel_id, decoder, codec=codec, ack=ack, resume_from=resume_from, buffer=buffer, fault=fault
        )
        return ReceiverChannel(core, decoder, self._running().clock)

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
    ) -> ReceiverChannel:
        """Create a channel of messages from committed groups (`GroupClient`), which are numbered here.

        Messages are acknowledged at the next `recv`, or by `ack`. Acknowledged messages are deleted, and after a
        restart with the same directory the channel continues after them. The call opens the channel's files, which
        takes a few milliseconds, and longer if many messages are held or unacknowledged, because the headers of all
        records are read. The other settings are those of `register_channel`.

        Raises:
            ChannelInUse: the id is registered here, or its files are in use by this process or another.
            LogDamaged, LogBroken, StorageFull, SchemaMismatch: the files cannot be opened, or hold messages of
                another codec or schema.
            ValueError: the buffer is one that only senders have.
        """
        self._check(channel_id, buffer, fault)
        _check_ack(ack)
        check_given("policy", policy, StagingPolicy)
        decoder = make_decoder(codec, schema)
        self._core.check_free(channel_id)
        store = _open_store(channel_id, codec, decoder, policy)
        try:
            core = self._register(
                channel_id, decoder, codec=codec, ack=ack, resume_from=resume_from, buffer=buffer, fault=fault
            )
        except BaseException:
            store.close()
            raise
        clock = self._running().clock
        StagedChannel(
            self._core,
            core,
            partial(StagedFiles, store),
            policy,
            make_decoder=partial(make_decoder, codec, schema),
            now=clock(),
        )
        return ReceiverChannel(core, decoder, clock)

    def retain_channel(
        self,
        channel_id: str,
        policy: RetainPolicy,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
    ) -> RetainedChannel:
        """Keep the stream for `ChannelReader`s, instead of delivering it here.

        Messages are acknowledged to their sender once they are kept; the stream continues after the last kept
        message. ``policy`` has the bounds and the place of the kept messages. The call opens the channel's files, and
        waits for the disk. The other settings are those of `register_channel`.

        Raises:
            ChannelInUse: the id is registered here, or its files are in use by this process or another.
            LogDamaged, LogBroken, StorageFull, SchemaMismatch: the files cannot be opened, or hold messages of
                another codec or schema.
            ValueError: the buffer is one that only senders have.
        """
        self._check(channel_id, buffer, fault)
        check_given("policy", policy, RetainPolicy)
        return keep_stream(
            self._core,
            channel_id,
            codec,
            schema,
            policy,
            buffer=buffer or _BUFFER,
            fault=fault or FaultPolicy(),
            clock=self._running().clock,
        )

    def register_service(
        self, service_id: str, answer: Callable[[bytes], bytes | Awaitable[bytes]]
    ) -> Service:
        """Answer calls (`Caller`) with the results of ``answer`` for their bodies; returns at once.

        Bodies and results have at most 64 MiB each. ``answer`` is called on this server's loop, so it must not block;
        for long work it returns an awaitable, which is cancelled if the caller no longer waits. After a lost
        connection, the same call may arrive twice. At most 1024 calls of a connection, with 64 MiB of bodies, run at
        once. Exceptions of ``answer`` reach the caller as `CallFailed`.

        Ids of services have the form of channel ids, in a separate namespace: a channel may have the same id. When the
        server's context is left, waiting callers are not notified, but repeat their calls at the next process at its
        address.

        Raises:
            ChannelInUse: the id of a service is registered here, or by a member of this node.
        """
        runner = self._running()
        check_loop(runner.loop)
        return Service(self._core, runner, service_id, answer, self._services)

    def _check(self, channel_id: str, buffer: BufferPolicy | None, fault: FaultPolicy | None) -> None:
        """Raise for what no channel can be received with, before a file is opened for it."""
        check_loop(self._running().loop)
        check_kind("buffer", buffer, BufferPolicy)
        check_kind("fault", fault, FaultPolicy)
        if buffer is not None and (buffer.when_full != "block" or buffer.directory is not None):
            raise ValueError(
                f"a receiver's buffer is in memory, and slows down its sender when it is full: {buffer} is only for "
                f"senders"
            )
        check_channel_id(channel_id)

    def _register(
        self,
        channel_id: str,
        decoder: Decoder,
        *,
        codec: CodecName,
        ack: str,
        resume_from: Position | int | None,
        buffer: BufferPolicy | None,
        fault: FaultPolicy | None,
    ) -> InboundChannel:
        return self._core.register(
            channel_id,
            codec=codec,
            decoder=decoder,
            explicit=ack == "explicit",
            resume_from=resume_from,
            buffer=buffer or _BUFFER,
            fault=fault or FaultPolicy(),
            now=self._running().clock(),
        )

    def statistics(self) -> ReceiverServerStatistics:
        """The server's peers, and its channels by id. May be called from any thread, as `SenderServer.statistics`."""
        runner = self._running()
        now = runner.clock()
        channels = {core.id: statistics_of(core) for core in list(self._core.channels.values())}
        peers = [session.statistics(len(session.channels), now) for session in list(self._core.sessions)]
        peers += [client.statistics(client.asks, now) for client in list(self._core.services.clients)]
        node = self._core.node
        return ReceiverServerStatistics(
            **runner.measured(now),
            peers=tuple(peers),
            channels=channels,
            members=tuple(member.statistics_as_member() for member in list(self._core.members.links)),
            node=None if node is None else node.statistics(now),
        )

    def inside(self) -> tuple[ReceiverCore, Runner]:
        """Its internals, for a `SenderServer` that listens through it."""
        return self._core, self._running()

    def _running(self) -> Runner:
        if self._runner is None:
            raise NetChannelError(
                "this ReceiverServer is not running: use 'async with ReceiverServer() as receiver'"
            )
        return self._runner


def _check_ack(ack: str) -> None:
    if ack not in ("receipt", "explicit"):
        raise ValueError(f"ack is {ack!r}: expected 'receipt' or 'explicit'")


def _open_store(channel_id: str, codec: str, decoder: Decoder, staging: StagingPolicy) -> StagingStore:
    """The files of a staged channel. Raises SchemaMismatch, too, if what they hold has another schema."""
    directory = Path(staging.directory)
    store = StagingStore.open(
        directory,
        channel_id,
        create_stream=lambda: uuid.uuid4().hex,
        codec=codec,
        spare_bytes=staging.max_staged_bytes // _SPARE_PART,
    )
    try:
        if store.state.schema:
            decoder.learn(store.state.schema)
    except BaseException:
        store.close()
        raise
    return store


def _most_connections() -> int:
    """Three quarters of the files that the process may have open: the rest is for its files, and for its senders."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(2, limit * 3 // 4) if limit != resource.RLIM_INFINITY else sys.maxsize


def _check_node(listen: str, advertise: str | None, members: str | None, node: str | None) -> None:
    """Raise if the process cannot be one of several at a node."""
    for name, address in (("members", members), ("node", node)):
        check_kind(name, address, str)
        if address is None:
            continue
        if scheme_of(address) != "unix":
            raise ValueError(f"{name} is {address!r}: expected unix:/path, which other users cannot reach")
        check(address)
        for other in (listen, advertise or listen):
            _port(other)
    if members is not None and node is not None:
        raise ValueError("a process has members or is a member of a node, not both: give members= or node=")


def _port(address: str) -> int:
    """The port of an address of TCP, or of a transport that has been registered and has ports too."""
    port = address.rpartition(":")[2]
    if scheme_of(address) in ("unix", "mem") or not (port.isascii() and port.isdigit()):
        raise ValueError(
            f"processes of a node are distinguished by their ports, but {address} has none: listen on "
            f"host:port"
        )
    return int(port)


def _data_ports(listen: str, data_ports: str) -> tuple[str, range | None]:
    if scheme_of(listen) != "tcp":
        raise ValueError(f"data_ports needs TCP, and this server listens on {listen}")
    return parse_address(listen).host, parse_data_ports(data_ports)
