"""`SenderServer` holds the connections to receivers, and makes the channels."""

from __future__ import annotations

import asyncio
import secrets
from dataclasses import replace
from typing import TYPE_CHECKING, Self, overload

from netchannel.core.replay.producing import Producing
from netchannel.core.sending.sender_core import SenderCore
from netchannel.core.states import SenderState
from netchannel.core.timing import Timing
from netchannel.disk.buffering import open_buffer
from netchannel.errors import NetChannelError
from netchannel.reporting import encodable, log
from netchannel.tls import Credentials, Tls
from netchannel.transports import schemes
from netchannel.transports.runner import Runner
from netchannel.transports.tls import Dialer
from netchannel.values import (
    BufferPolicy,
    FaultPolicy,
    Group,
    PeerStatistics,
    RetainPolicy,
    ServerStatistics,
    check_channel_id,
    check_kind,
)
from netchannel.wire.messages import TEXT_LIMIT

from .groups import open_attempt
from .identity import encoded, node_name, wall_us
from .receiver import ReceiverServer
from .retaining import RetainedSenderChannel, offer_stream, produced_statistics
from .sender_channel import SenderChannel
from .waiting import Changes, check_loop

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import pyarrow as pa

    from netchannel.core.sending.outbound import OutboundChannel
    from netchannel.core.sending.sender_core import SenderPeer
    from netchannel.wire.codec import CodecName

    from .groups import GroupChannel

FORGET_FROM = 16
"""Channels from which on those that are over are looked for."""


class SenderServer:
    """All streams that a process sends; an async context manager.

    It holds one control connection per receiver, opened with the first channel there, and one data connection per
    channel. On leaving the context a channel that was not closed is aborted ("producer left without closing"), so
    that an exception never looks like a clean end; one with a durable buffer is detached: whoever registers it with
    the same directory goes on with it. ``secret`` must be the receivers'. With ``tls`` all its receivers speak TLS.
    ``congestion_control`` is TCP's between peers on one host, where those for networks cost throughput and do
    nothing; None leaves the system's, and so does one that the system does not have or allow.

    With ``listen``, an address as `ReceiverServer` takes it, channels can be read from it directly, with
    `ChannelReader`: those that are registered with ``retain=`` instead of ``to``.
    """

    def __init__(
        self,
        listen: str | None = None,
        *,
        secret: str | None = None,
        tls: Tls | None = None,
        congestion_control: str | None = "cubic",
        timing: Timing | None = None,
    ) -> None:
        self._listening: ReceiverServer | None = None
        if listen is not None:
            self._listening = ReceiverServer(
                listen, secret=secret, tls=tls, congestion_control=congestion_control, timing=timing
            )
        check_kind("secret", secret, str)
        check_kind("tls", tls, Tls)
        check_kind("timing", timing, Timing)
        self._secret = secret
        self._dialer = None if tls is None else Dialer(Credentials(tls, "sender"))
        self._congestion_control = congestion_control
        self._timing = timing or Timing()
        self._core: SenderCore
        self._runner: Runner | None = None
        self._channels: dict[OutboundChannel, SenderChannel] = {}
        self._forget_at = FORGET_FROM

    async def __aenter__(self) -> Self:
        if self._runner is not None:
            raise NetChannelError("this SenderServer is running already: make another one")
        self._core = SenderCore(
            node_name("sender"), self._timing, wall_us, secrets.token_bytes, encoded(self._secret)
        )
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
        """Where its channels can be read, if it listens."""
        if self._listening is None:
            raise NetChannelError("this SenderServer does not listen: make it with SenderServer('host:port')")
        return self._listening.address

    @overload
    def register_channel(
        self,
        channel_id: str,
        to: str,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
        group: Group,
    ) -> GroupChannel: ...

    @overload
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
        group: None = None,
    ) -> SenderChannel: ...

    @overload
    def register_channel(
        self,
        channel_id: str,
        to: None = None,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        stream: str | None = None,
        retain: RetainPolicy,
    ) -> RetainedSenderChannel: ...

    def register_channel(
        self,
        channel_id: str,
        to: str | None = None,
        *,
        codec: CodecName = "arrow",
        schema: pa.Schema | None = None,
        stream: str | None = None,
        replayable: bool = False,
        buffer: BufferPolicy | None = None,
        fault: FaultPolicy | None = None,
        group: Group | None = None,
        retain: RetainPolicy | None = None,
    ) -> SenderChannel | RetainedSenderChannel:
        """Make a channel to the receiver at ``to``, its ``address``; returns at once.

        Args:
            channel_id: 1 to 255 bytes of printable UTF-8; the receiver registers the same.
            to: the receiver's address; nobody needs to listen there yet.
            codec: ``arrow`` takes pyarrow.RecordBatch, ``bytes`` anything with the buffer protocol.
            schema: the batches' schema; if not given, the first batch's.
            stream: the identity of the stream, 1 to 4 096 characters, to go on with one that another process has
                detached. A durable buffer keeps it by itself.
            replayable: the producer can start anywhere: the stream goes on at the receiver's next number, which
                ``await channel.attached()`` tells.
            buffer: how much is kept until it is acknowledged, and where. A durable buffer is opened here, which
                waits for the disk for a few milliseconds.
            fault: how long a receiver that is away is waited for.
            group: what is sent is an attempt at a partition of a staged group, and a `GroupChannel` is returned.
            retain: keep the stream here, for `ChannelReader`s, instead of sending it: on a server that listens.

        Raises:
            ChannelInUse: this process sends on that channel to that receiver already, or its durable buffer is open
                in this process or another.
            LogDamaged, LogBroken, StorageFull: the durable buffer cannot be opened.
            SchemaMismatch: the durable buffer holds messages of another schema or codec.
            ValueError: ``to`` is no address, or the settings do not go together.
        """
        runner = self._running()
        check_loop(runner.loop)
        check_kind("to", to, str)
        check_kind("stream", stream, str)
        check_kind("buffer", buffer, BufferPolicy)
        check_kind("fault", fault, FaultPolicy)
        check_kind("retain", retain, RetainPolicy)
        check_channel_id(channel_id)
        _check_stream(stream)
        if retain is not None:
            if to is not None or replayable or any(each is not None for each in (buffer, fault, group)):
                raise ValueError(
                    "retain= keeps the stream here, and to=, buffer=, fault=, group= and replayable= are for streams "
                    "that are sent: give one or the other"
                )
            return self._offer(channel_id, codec, schema, retain, stream)
        if to is None:
            raise ValueError(
                f"channel {channel_id!r} has no receiver: give to=, or retain= where it is to be read from here"
            )
        (self._dialer or schemes).check(to)
        policy = buffer or BufferPolicy()
        if replayable and policy.directory is not None:
            raise ValueError(
                f"replayable=True does not go with a durable buffer ({policy.directory}): that goes on by itself"
            )
        check_kind("group", group, Group)
        make: Callable[..., SenderChannel] = SenderChannel
        if group is None:
            opened = open_buffer(policy, channel_id, codec, schema, stream)
        else:
            if stream is not None or replayable:
                raise ValueError(
                    "an attempt of a group is a stream of its own: leave stream= and replayable= away"
                )
            opened, wire_id, make = open_attempt(policy, channel_id, codec, schema, group)
        try:
            core_channel = self._core.register(
                channel_id if group is None else wire_id,
                to,
                stream=opened.stream,
                codec=codec,
                schema=opened.encoder.schema if codec == "arrow" else None,
                buffer=policy,
                fault=fault or FaultPolicy(),
                replayable=replayable,
                now=runner.clock(),
                prepare=opened.prepare,
            )
        except BaseException:
            opened.close()
            raise
        self._forget_settled()
        channel = self._channels[core_channel] = make(core_channel, opened.encoder, runner.clock)
        return channel

    def _offer(
        self,
        channel_id: str,
        codec: CodecName,
        schema: pa.Schema | None,
        retain: RetainPolicy,
        stream: str | None,
    ) -> RetainedSenderChannel:
        if self._listening is None:
            raise ValueError(
                f"channel {channel_id!r} is to be read from here, and this server does not listen: make it with "
                f"SenderServer('host:port')"
            )
        core, runner = self._listening.inside()
        return offer_stream(core, channel_id, codec, schema, retain, stream=stream, clock=runner.clock)

    def statistics(self) -> ServerStatistics[tuple[str, str]]:
        """The server's peers, and its channels by ``(id, to)``. May be called from any thread.

        Attempts at groups are not among them: they are many, and each has a `GroupChannel.statistics` of its own.

        It only reads, so that it neither waits for the event loop nor holds it up. From another thread, numbers that
        belong together may be a message apart.
        """
        runner = self._running()
        now = runner.clock()
        # `list` copies a dict in one step, which no other thread can come between.
        peers = list(self._core.peers.values())
        cores = [core for core in list(self._core.channels.values()) if core.group is None]
        known = self._channels
        # One that has just come is not known yet, one that is just over may be known no more.
        channels = {(core.id, core.to): known[core].statistics() for core in cores if core in known}
        found = runner.statistics([_peer_statistics(peer, now) for peer in peers], channels, now)
        return found if self._listening is None else _with_readers(found, self._listening, now)

    def _running(self) -> Runner:
        if self._runner is None:
            raise NetChannelError(
                "this SenderServer is not running: use 'async with SenderServer() as sender'"
            )
        return self._runner

    def _forget_settled(self) -> None:
        """Now and then, so that a server that lives on does not hold all the channels that it ever had."""
        if len(self._channels) >= self._forget_at:
            self._channels = {core: each for core, each in self._channels.items() if not core.settled}
            self._forget_at = FORGET_FROM + 2 * len(self._channels)

    def descriptors(self) -> list[int]:
        """Of all its sockets, e.g. to close them in a forked child."""
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
            log.warning("%s: left without an answer from its receivers", self._core.name)
        finally:
            for channel in channels:
                if not channel.core.terminal:
                    channel.core.give_up(reason, runner.clock())
            if self._listening is not None:
                await self._leave_readers(self._listening, reason)
            await runner.stop()

    async def _leave_readers(self, listening: ReceiverServer, reason: str) -> None:
        """Who watches hears that a stream will not go on; one on disk goes on with its successor."""
        core, runner = listening.inside()
        for service in list(core.services.offered.values()):
            if isinstance(service, Producing):
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
                "%s: left %d clients that did not hear it in time", core.name, len(core.services.clients)
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
        """Whether waiting may help: the receiver is there, or is being dialed, and has not said no."""
        return channel.state is not SenderState.DENIED and self._core.peer_of(channel).reaching


def _check_stream(stream: str | None) -> None:
    if stream is not None and not 1 <= len(stream) <= TEXT_LIMIT:
        raise ValueError(
            f"the stream {stream[:60]!r} has {len(stream)} characters: expected 1 to {TEXT_LIMIT}"
        )
    if stream is not None and stream != encodable(stream):
        raise ValueError(f"the stream {stream[:60]!r} cannot be written as UTF-8")


def _with_readers(
    found: ServerStatistics[tuple[str, str]], listening: ReceiverServer, now: float
) -> ServerStatistics[tuple[str, str]]:
    """The same, with the channels that are kept here, by ``(id, address)``, and the clients that ask for them."""
    core, runner = listening.inside()
    kept = {
        (channel_id, listening.address): produced_statistics(service)
        for channel_id, service in list(core.services.offered.items())
        if isinstance(service, Producing)
    }
    clients = [client.statistics(client.asks, now) for client in list(core.services.clients)]
    readers: ServerStatistics[str] = runner.statistics(clients, {}, now)
    return replace(
        found,
        peers=(*found.peers, *readers.peers),
        channels={**found.channels, **kept},
        connections=found.connections + readers.connections,
        bytes_sent=found.bytes_sent + readers.bytes_sent,
        bytes_received=found.bytes_received + readers.bytes_received,
    )


def _peer_statistics(peer: SenderPeer, now: float) -> PeerStatistics:
    channels, control = len(peer.channels), peer.control
    if control is None:
        return PeerStatistics(address=peer.address, name="", state="waiting", channels=channels)
    return control.statistics(channels, now)
