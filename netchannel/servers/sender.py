"""`SenderServer` holds the connections to receivers, and makes the channels."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Self, TypeVar

from netchannel.core.replay.retained_outbound import RetainedOutbound
from netchannel.core.sending.sender_core import SenderCore
from netchannel.core.states import SenderState
from netchannel.errors import NetChannelError
from netchannel.log_texts import encodable, log
from netchannel.policies import BufferPolicy, FaultPolicy, RetainPolicy, Timing
from netchannel.statistics import PeerStatistics, SenderServerStatistics
from netchannel.storage.openers import open_buffer
from netchannel.tls import Credentials, Tls
from netchannel.transports import schemes
from netchannel.transports.host_memory import SHARED_MEMORY, check_shared_memory, make_shared_memory
from netchannel.transports.runner import Runner
from netchannel.transports.tls_transport import TlsDialer
from netchannel.values import Group, check_channel_id, check_given, check_kind
from netchannel.wire.messages import TEXT_LIMIT

from .group_channels import GroupChannel, open_attempt
from .identity import encoded, node_name, shown, wall_us
from .receiver import ReceiverServer
from .retained_channels import RetainedSenderChannel, offer_stream, produced_statistics
from .sender_channel import SenderChannel
from .waiter import Changes, check_loop

if TYPE_CHECKING:
    from types import TracebackType

    import pyarrow as pa

    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.sending.sender_core import SenderPeer
    from netchannel.storage.openers import OpenedBuffer
    from netchannel.wire.codec import CodecName


Channel = TypeVar("Channel", bound=SenderChannel)

FORGET_FROM = 16
"""Channels from which on those that are over are looked for."""


class SenderServer:
    """All streams that a process sends; an async context manager.

    It holds one control connection per receiver, opened with the first channel there, and one data connection
    per channel. On leaving the context a channel that was not closed is aborted ("producer left without
    closing"), so that an exception never looks like a clean end. A channel with a durable buffer is detached instead:
    the next process that registers it with the same directory continues it. ``secret`` must match the receivers'. With
    ``tls`` all receivers must use TLS. ``congestion_control`` is TCP's algorithm for connections within one host, where
    algorithms for networks cost throughput without benefit. None, or an algorithm that the system lacks or forbids,
    keeps the system's.

    Large messages to a receiver of the same user on this host go through shared memory, at most ``shared_memory``
    bytes for each receiver; 0: none. With ``tls`` no memory is shared.

    With ``listen``, an address as for `ReceiverServer`, `ChannelReader` can read the channels of `retain_channel` from
    this server directly.
    """

    def __init__(
        self,
        listen: str | None = None,
        *,
        secret: str | None = None,
        tls: Tls | None = None,
        congestion_control: str | None = "cubic",
        shared_memory: int = SHARED_MEMORY,
        timing: Timing | None = None,
    ) -> None:
        self._listening: ReceiverServer | None = None
        if listen is not None:
            self._listening = ReceiverServer(
                listen,
                secret=secret,
                tls=tls,
                congestion_control=congestion_control,
                shared_memory=0,  # readers get what they read over their connections
                timing=timing,
            )
        check_shared_memory(shared_memory)
        check_kind("secret", secret, str)
        check_kind("tls", tls, Tls)
        check_kind("timing", timing, Timing)
        self._secret = secret
        self._dialer = None if tls is None else TlsDialer(Credentials(tls, "sender"))
        self._congestion_control = congestion_control
        self._shared_memory = 0 if tls is not None else shared_memory
        self._timing = timing or Timing()
        self._core: SenderCore
        self._runner: Runner | None = None
        self._channels: dict[OutboundChannel, SenderChannel] = {}
        self._forget_at = FORGET_FROM

    def __repr__(self) -> str:
        address = [repr(self.address)] if self._listening is not None and self._runner is not None else []
        return shown(self, *address, "not running" if self._runner is None else "running")

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise NetChannelError("this SenderServer is already running: make a new one")
        self._core = SenderCore(
            node_name("sender"), self._timing, wall_us, secrets.token_bytes, encoded(self._secret)
        )
        self._core.shared_memory = make_shared_memory(self._shared_memory)
        self._core.sharing_is_off = self._dialer is None and self._shared_memory == 0
        if self._listening is not None:
            await self._listening.__aenter__()
        self._runner = Runner(self._core, self._congestion_control, (self._dialer or schemes).connect)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        cause = "" if error is None else f": {error or kind}"
        await self._leave(f"producer left without closing{cause}")

    @property
    def address(self) -> str:
        """The address at which retained channels can be read. Raises NetChannelError without ``listen``."""
        if self._listening is None:
            raise NetChannelError("this SenderServer does not listen: make it with SenderServer('host:port')")
        return self._listening.address

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
    ) -> SenderChannel:
        """Create a channel to the receiver at ``to``, its ``address``; return at once.

        Args:
            channel_id: 1 to 255 bytes of printable UTF-8; the receiver registers the same id.
            to: the receiver's address; the receiver may start later.
            codec: ``arrow`` sends pyarrow.RecordBatch, ``bytes`` any object with the buffer protocol.
            schema: the batches' schema (default: the first batch's).
            stream: the identity of the stream, 1 to 4 096 characters, to continue a stream that another process has
                detached. A durable buffer keeps its identity automatically.
            replayable: the producer can start at any message: the stream continues at the receiver's next number,
                which ``await channel.attached()`` returns.
            buffer: bounds and place of unacknowledged messages. A durable buffer is opened by this call, which then
                waits for the disk for a few milliseconds.
            fault: how long to wait for an absent receiver.

        Raises:
            ChannelInUse: this server already sends on that channel to that receiver, or its durable buffer is
                open in this process or another.
            LogDamaged, LogBroken, StorageFull: the durable buffer cannot be opened.
            SchemaMismatch: the durable buffer holds messages of another schema or codec.
            ValueError: ``to`` is not an address, or the settings exclude each other.
        """
        self._check(channel_id, to, buffer, fault)
        _check_stream(stream)
        policy = buffer or BufferPolicy()
        if replayable and policy.directory is not None:
            raise ValueError(
                f"replayable=True cannot be combined with a durable buffer ({policy.directory}): such a buffer "
                f"continues automatically"
            )
        opened = open_buffer(policy, channel_id, codec, schema, stream)
        core = self._register(
            channel_id, to, opened, codec=codec, buffer=policy, fault=fault, replayable=replayable
        )
        return self._known(SenderChannel(core, opened.encoder, self._running().clock))

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
    ) -> GroupChannel:
        """Create an attempt at a partition of a staged group, for the channel at ``to``; return at once.

        Settings and errors are those of `register_channel`. It also raises ValueError for an invalid ``group``, and for
        a buffer that is durable or drops messages.
        """
        self._check(channel_id, to, buffer, fault)
        check_given("group", group, Group)
        policy = buffer or BufferPolicy()
        opened, encoder, wire_id = open_attempt(policy, channel_id, codec, schema, group)
        core = self._register(wire_id, to, opened, codec=codec, buffer=policy, fault=fault)
        return self._known(
            GroupChannel(core, encoder, self._running().clock, channel_id=channel_id, group=group)
        )

    def retain_channel(
        self,
        channel_id: str,
        policy: RetainPolicy,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        stream: str | None = None,
    ) -> RetainedSenderChannel:
        """Keep a stream here, for `ChannelReader`s, instead of sending it; on a server that listens.

        Settings and errors are those of `register_channel`; ``policy`` has the bounds and the place of the kept
        messages. The call opens the channel's files, and waits for the disk. It also raises ValueError on a server that
        does not listen.
        """
        check_loop(self._running().loop)
        check_given("policy", policy, RetainPolicy)
        _check_stream(stream)
        check_channel_id(channel_id)
        if self._listening is None:
            raise ValueError(
                f"channel {channel_id!r} is retained for readers, but this server does not listen: make it with "
                "SenderServer('host:port')"
            )
        core, runner = self._listening.inside()
        return offer_stream(core, channel_id, codec, schema, policy, stream=stream, clock=runner.clock)

    def _check(
        self, channel_id: str, to: str, buffer: BufferPolicy | None, fault: FaultPolicy | None
    ) -> None:
        """Raise for what no channel can be sent with, before a file is opened for it."""
        check_loop(self._running().loop)
        check_given("to", to, str)
        check_kind("buffer", buffer, BufferPolicy)
        check_kind("fault", fault, FaultPolicy)
        check_channel_id(channel_id)
        (self._dialer or schemes).check(to)

    def _register(
        self,
        wire_id: str,
        to: str,
        opened: OpenedBuffer,
        *,
        codec: CodecName,
        buffer: BufferPolicy,
        fault: FaultPolicy | None,
        replayable: bool = False,
    ) -> OutboundChannel:
        try:
            return self._core.register(
                wire_id,
                to,
                stream=opened.stream,
                codec=codec,
                schema=opened.encoder.schema if codec == "arrow" else None,
                buffer=buffer,
                fault=fault or FaultPolicy(),
                replayable=replayable,
                now=self._running().clock(),
                prepare=opened.prepare,
            )
        except BaseException:
            opened.close()
            raise

    def _known(self, channel: Channel) -> Channel:
        self._forget_settled()
        self._channels[channel.core] = channel
        return channel

    def statistics(self) -> SenderServerStatistics:
        """The server's peers, and its channels by ``(id, to)``. May be called from any thread.

        Attempts at groups are not included, because there may be many; each has its own `GroupChannel.statistics`.

        The call only reads, so it neither waits for the event loop nor delays it. From another thread, related numbers
        may differ by a message.
        """
        runner = self._running()
        now = runner.clock()
        # `list` copies a dict in one step, which no other thread can come between.
        peers = list(self._core.peers.values())
        cores = [core for core in list(self._core.channels.values()) if core.group is None]
        known = self._channels
        # One that has just come is not known yet, one that is just over may be known no more.
        channels = {(core.id, core.to): known[core].statistics() for core in cores if core in known}
        found = SenderServerStatistics(
            **runner.measured(now),
            peers=tuple(_peer_statistics(peer, now) for peer in peers),
            channels=channels,
        )
        return found if self._listening is None else _with_readers(found, self._listening, now)

    def _running(self) -> Runner:
        if self._runner is None:
            raise NetChannelError(
                "this SenderServer is not running: use 'async with SenderServer() as sender'"
            )
        return self._runner

    def _forget_settled(self) -> None:
        """Forget channels that are over, now and then, so that a server that lives on does not hold all it ever had."""
        if len(self._channels) >= self._forget_at:
            self._channels = {core: each for core, each in self._channels.items() if not core.settled}
            self._forget_at = FORGET_FROM + 2 * len(self._channels)

    def descriptors(self) -> list[int]:
        """File descriptors of all its sockets, e.g. to close them in a forked child."""
        if self._runner is None:
            return []
        listening = [] if self._listening is None else self._listening.descriptors()
        return [*self._runner.descriptors(), *listening]

    async def _leave(self, reason: str) -> None:
        runner, self._runner = self._runner, None
        if runner is None:
            return
        channels = [channel for core, channel in self._channels.items() if not core.settled]
        try:
            async with asyncio.timeout(self._timing.leave_s):
                await asyncio.gather(*(self._abandon(channel, reason) for channel in channels))
        except TimeoutError:
            log.warning("%s: closed before all receivers had answered", self._core.name)
        finally:
            for channel in channels:
                _tell_of_loss(channel.core)
                if not channel.core.terminal:
                    channel.core.give_up(reason, runner.clock())
            if self._listening is not None:
                await self._leave_readers(self._listening, reason)
            await runner.stop()

    async def _leave_readers(self, listening: ReceiverServer, reason: str) -> None:
        """Notify watching readers that a stream will not continue; one on disk continues with its successor."""
        core, runner = listening.inside()
        for service in list(core.services.offered.values()):
            if isinstance(service, RetainedOutbound):
                if not service.history.durable:
                    service.finish(reason, runner.clock())
                    service.push_now(runner.clock())
                service.leave(runner.clock(), discard=False)
        gone = Changes()
        core.services.on_client_gone = gone.notify
        for client in list(core.services.clients):
            client.close()
        try:
            async with asyncio.timeout(self._timing.leave_s):
                while core.services.clients:
                    await gone.wait()
        except TimeoutError:
            log.warning(
                "%s: ended before %d clients could be notified", core.name, len(core.services.clients)
            )
        await listening.__aexit__(None, None, None)

    async def _abandon(self, channel: SenderChannel, reason: str) -> None:
        if channel.core.durable:
            await channel.detach()
            return
        channel.core.finish(reason)
        while not channel.core.terminal and self._reachable(channel.core):
            await channel.changes.wait()

    def _reachable(self, channel: OutboundChannel) -> bool:
        """True if waiting may help: the receiver is there, or is being dialed, and has not refused."""
        return channel.state is not SenderState.DENIED and self._core.peer_of(channel).reaching


def _tell_of_loss(core: OutboundChannel) -> None:
    """Warn of messages that did not arrive: a program that leaves without `close` would not notice."""
    if core.durable is None and core.acknowledged < core.head:
        log.warning(
            "channel %s to %s: the channel was not closed before its server; %d messages were sent, but those "
            "from number %d on were not acknowledged and are dropped: await close() or flush(), which wait "
            "for acknowledgements",
            core.id, core.to, core.head, core.acknowledged,
        )  # fmt: skip


def _check_stream(stream: str | None) -> None:
    check_kind("stream", stream, str)
    if stream is not None and not 1 <= len(stream) <= TEXT_LIMIT:
        raise ValueError(
            f"the stream {stream[:60]!r} has {len(stream)} characters: expected 1 to {TEXT_LIMIT}"
        )
    if stream is not None and stream != encodable(stream):
        raise ValueError(f"the stream {stream[:60]!r} cannot be written as UTF-8")


def _with_readers(
    found: SenderServerStatistics, listening: ReceiverServer, now: float
) -> SenderServerStatistics:
    """The same, with the channels that are kept here, by ``(id, address)``, and the clients that ask for them."""
    core, runner = listening.inside()
    kept = {
        (channel_id, listening.address): produced_statistics(service)
        for channel_id, service in list(core.services.offered.items())
        if isinstance(service, RetainedOutbound)
    }
    clients = [client.statistics(client.asks, now) for client in list(core.services.clients)]
    readers = runner.measured(now)
    return replace(
        found,
        peers=(*found.peers, *clients),
        channels={**found.channels, **kept},
        connections=found.connections + readers["connections"],
        bytes_sent=found.bytes_sent + readers["bytes_sent"],
        bytes_received=found.bytes_received + readers["bytes_received"],
    )


def _peer_statistics(peer: SenderPeer, now: float) -> PeerStatistics:
    channels, control = len(peer.channels), peer.control
    if control is None:
        return PeerStatistics(address=peer.address, name="", state="waiting", channels=channels)
    return control.statistics(channels, now)
