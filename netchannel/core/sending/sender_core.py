"""The sending side without I/O: one control connection per receiver, channels that ask to be opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.control_connection import FOR_CONTROL
from netchannel.core.dialer import DialedControl, Peer
from netchannel.core.link import Core
from netchannel.core.states import SenderEvent, SenderState
from netchannel.errors import (
    AttemptLost,
    ChannelClosedByPeer,
    ChannelInUse,
    EpochRegressed,
    HandshakeError,
    NetChannelError,
    PositionLost,
    ProtocolError,
    SchemaMismatch,
)
from netchannel.log_texts import log
from netchannel.wire import messages

from .data_sender import SenderData
from .features import describe_missing, limit_of
from .lender import ABOUT_MEMORY, Lender
from .outbound import OutboundChannel

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.policies import BufferPolicy, FaultPolicy, Timing
    from netchannel.wire.declarations import Message

PERMANENT: dict[str, type[NetChannelError]] = {
    "codec": SchemaMismatch,
    "schema": SchemaMismatch,
    "unreadable": SchemaMismatch,
    "policy": HandshakeError,
    "attempt": AttemptLost,
    "regressed": EpochRegressed,
    "ended": ChannelClosedByPeer,
}
"""Codes of refusals that asking again cannot change, and what they raise."""


class SenderCore(Core):
    """All channels that a process sends on."""

    def __init__(
        self,
        name: str,
        timing: Timing,
        wall: Callable[[], int],
        random: Callable[[int], bytes],
        secret: bytes | None = None,
    ) -> None:
        super().__init__(name, timing, wall, random, secret)
        self.channels: dict[tuple[str, str], OutboundChannel] = {}  # by id, and where it was registered to
        self.peers: dict[tuple[str, str], SenderPeer] = {}  # by what is dialed, and on whose word

    def register(
        self,
        channel_id: str,
        to: str,
        *,
        stream: str,
        codec: str,
        schema: bytes | None,
        buffer: BufferPolicy,
        fault: FaultPolicy,
        replayable: bool,
        now: float,
        prepare: Callable[[OutboundChannel], None] = lambda channel: None,
    ) -> OutboundChannel:
        """Make a channel, `prepare` it, and begin to open it. Raises ChannelInUse."""
        known = self.channels.get((channel_id, to))
        if known is not None:
            raise ChannelInUse(
                f"channel {channel_id!r} to {to} is already registered in this process, with stream "
                f"{known.stream!r}: close it first, or choose another id"
            )
        channel = OutboundChannel(
            self,
            channel_id,
            to,
            stream=stream,
            codec=codec,
            buffer=buffer,
            fault=fault,
            replayable=replayable,
            on_released=self._released,
            now=now,
        )
        channel.schema = schema
        prepare(channel)
        self.channels[channel_id, to] = channel
        peer = self._peer(to, to)
        peer.channels[channel_id] = channel
        peer.open(channel, now)
        return channel

    def _peer(self, address: str, node: str) -> SenderPeer:
        peer = self.peers.get((address, node))
        if peer is None:
            peer = self.peers[address, node] = SenderPeer(self, address, node)
        return peer

    def peer_of(self, channel: OutboundChannel) -> SenderPeer:
        """The peer that is asked for ``channel``."""
        return self.peers[channel.at, channel.to]

    def move(self, channel: OutboundChannel, address: str, now: float) -> SenderPeer:
        """Ask at ``address`` for ``channel`` from now on; the peer there."""
        before = self.peer_of(channel)
        channel.at = address
        peer = self._peer(address, channel.to)
        if peer is not before:
            del before.channels[channel.id]
            peer.channels[channel.id] = channel
            before.idle(now)
        return peer

    def _released(self, channel: OutboundChannel, now: float) -> None:
        """A channel is over: its id is free again."""
        peer = self.peer_of(channel)
        del self.channels[channel.id, channel.to]
        del peer.channels[channel.id]
        peer.progressed = peer.progressed or channel.progressed
        peer.idle(now)


class SenderPeer(Peer["SenderControl"]):
    """A receiver that is sent to: its control connection and the channels that it is asked for.

    Channels of other nodes, or registered to its own address, have another peer, so that ids do not meet.
    """

    core: SenderCore

    def __init__(self, core: SenderCore, address: str, node: str) -> None:
        super().__init__(core, address, node)
        self.channels: dict[str, OutboundChannel] = {}
        self._requests = 0
        self.progressed = False  # on this connection, by channels that are over

    @property
    def wanted(self) -> bool:
        return bool(self.channels)

    def _make_control(self) -> SenderControl:
        return SenderControl(self)

    def open(self, channel: OutboundChannel, now: float) -> None:
        """Ask the receiver to open ``channel``, once there is a connection to ask on."""
        if self.control is None:
            self.reach()
        elif self.control.greeted:
            self._request(channel, now)

    def _request(self, channel: OutboundChannel, now: float) -> None:
        assert self.control is not None
        self._requests += 1
        channel.request = self._requests
        if channel.retry is not None:
            channel.retry.cancel()
        channel.move(SenderEvent.OPEN, now)
        schema = channel.schema or b""
        opening = messages.Open(
            channel=channel.id,
            request=channel.request,
            stream=channel.stream,
            codec=channel.codec,
            schema=schema if 0 < len(schema) <= messages.SCHEMA_LIMIT else None,
            lossy=channel.buffer.when_full == "drop_oldest",
            **({} if channel.group is None else channel.group._asdict()),
        )
        self.control.say(opening)

    def established(self, now: float) -> None:
        self._backoff.established(now)
        for channel in list(self.channels.values()):
            self._request(channel, now)
        self.idle(now)

    def lost(self, reason: str, now: float) -> None:
        super().lost(reason, now)
        if self.progressed or any(channel.progressed for channel in self.channels.values()):
            self._backoff.reset()
        self.progressed = False
        for channel in list(self.channels.values()):
            lost = None if channel.state is SenderState.REGISTERED else SenderEvent.CONTROL_LOST
            if channel.retry is not None:
                channel.retry.cancel()
            channel.unreachable(lost, f"the control connection to {self._name} failed: {reason}", now)
            if not channel.terminal and self.is_member:
                self.ask_the_node(channel, now)
            channel.progressed = False
        self.redial(now)

    @property
    def _name(self) -> str:
        return f"{self.address}, named by {self.node}," if self.is_member else self.address

    def ask_the_node(self, channel: OutboundChannel, now: float) -> None:
        """Ask again where ``channel`` was registered to: it may be with another process there by now."""
        self.core.move(channel, self.node, now).reopen(channel, now)

    def ready(self, channel_id: str, now: float) -> None:
        """The receiver has it now: ask again, also for attempts that are for it."""
        own = self.channels.get(channel_id)
        attempts = [each for each in self.channels.values() if each.group and each.group.into == channel_id]
        for channel in attempts if own is None else [own]:
            if channel.state is SenderState.DENIED:
                self.open(channel, now)

    def sent_on(self, channel: OutboundChannel, port: int, now: float) -> None:
        """The receiver reports that the process at ``port`` of its host has ``channel``: ask there, at once."""
        if (address := self.elsewhere(port)) is not None:
            channel.move(SenderEvent.ELSEWHERE, now)
            self.core.move(channel, address, now).open(channel, now)
            return
        text = f"{self._name} redirected the request to port {port}, but this redirect cannot be followed"
        channel.unreachable(SenderEvent.DENY, text, now)
        if not channel.terminal:
            self.ask_the_node(channel, now)

    def refused(self, error: HandshakeError, now: float) -> None:
        whose = (
            f" ({self.address} is named by {self.node}: all processes of a node need the same tls= and secret=)"
            if self.is_member
            else ""
        )
        for channel in list(self.channels.values()):
            left = f"; {channel.counts}" if channel.acknowledged < channel.head else ""
            text = f"channel {channel.id!r}: {error}{whose}{left}"
            channel.fail(SenderEvent.GIVE_UP, HandshakeError(text), now)

    def reopen(self, channel: OutboundChannel, now: float) -> None:
        """Ask again: at once if the last connection brought the stream forward, later if it did not."""
        if channel.progressed:
            channel.progressed = False
            self.open(channel, now)
            return
        wait = channel.backoff.next(now)
        channel.retry = self.core.timers.at(now + wait, lambda now: self.open(channel, now))

    def _forget(self) -> None:
        if self.core.peers.get((self.address, self.node)) is self:
            del self.core.peers[self.address, self.node]


class SenderControl(DialedControl):
    """The sender's end of a control connection."""

    role, other_role = b"sender", b"receiver"
    purpose = FOR_CONTROL
    features = frozenset((messages.ELSEWHERE, messages.PORTS, messages.UPQUERIES))

    def __init__(self, peer: SenderPeer) -> None:
        super().__init__(peer, peer.address, peer.node)
        self._owner = peer
        self.lender: Lender | None = None  # memory that the receiver reads too

    def established(self, now: float) -> None:
        shared_memory = self.core.shared_memory
        if self.local and shared_memory is not None and messages.MEMORY in self.peer_features:
            self.lender = Lender(shared_memory, self.peer, self.say)
        super().established(now)
        if self.local and self.lender is None:
            self._say_why_nothing_is_lent()

    def _say_why_nothing_is_lent(self) -> None:
        if self.core.sharing_is_off:
            log.info("%s gets no messages in shared memory: shared_memory is 0 here", self.peer)
        elif self.core.shared_memory is not None:
            text = "%s takes no messages in shared memory: shared_memory is 0 there, or its system has no shared memory"
            log.info(text, self.peer)

    def _lost(self, reason: str, now: float) -> None:
        if self.lender is not None:
            self.lender.close()
        super()._lost(reason, now)

    def told(self, message: Message, now: float) -> None:
        if self.lender is not None and isinstance(message, ABOUT_MEMORY):
            self.lender.told(message)
            return
        match message:
            case messages.Ready():
                self._owner.ready(message.channel, now)
            case messages.Ok() | messages.Deny() | messages.Elsewhere() | messages.Finished():
                self._answered(message, now)
            case _:
                raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a receiver does not send")

    def _answered(
        self, answer: messages.Ok | messages.Deny | messages.Elsewhere | messages.Finished, now: float
    ) -> None:
        channel = self._owner.channels.get(answer.channel)
        if channel is None:
            return  # it ended while the answer was on its way
        if answer.request != channel.request or channel.state is not SenderState.REQUESTED:
            return  # an answer to an earlier attempt
        match answer:
            case messages.Ok():
                self._granted(channel, answer, now)
            case messages.Deny():
                self._denied(channel, answer, now)
            case messages.Elsewhere():
                self._owner.sent_on(channel, answer.port, now)
            case messages.Finished():
                channel.finished(answer.reason, answer.message, now, answer.count)

    def _granted(self, channel: OutboundChannel, answer: messages.Ok, now: float) -> None:
        remote = self.remote
        if answer.port is not None:
            remote = f"{remote.rpartition(':')[0]}:{answer.port}"
        if channel.buffer.when_full == "drop_oldest" and messages.GAPS not in self.peer_features:
            error = HandshakeError(f"channel {channel.id!r}: {describe_missing(self.peer, messages.GAPS)}")
            channel.fail(SenderEvent.GIVE_UP, error, now)
            return
        link = SenderData(channel, self, remote, answer.token)
        channel.granted(link, limit_of(answer.message_limit, self.peer_features), now)

    def _denied(self, channel: OutboundChannel, answer: messages.Deny, now: float) -> None:
        code, text = answer.code, answer.message
        if self.refused_for_good(channel, code, text, now):
            return
        channel.unreachable(SenderEvent.DENY, f"{self.peer} refused the channel: {text}", now)
        if channel.terminal:
            return
        if code == "unregistered":
            self._owner.ask_the_node(channel, now)
        else:
            self._owner.reopen(channel, now)

    def refused_for_good(self, channel: OutboundChannel, code: str, text: str, now: float) -> bool:
        """True if asking again cannot help; then the channel is given up."""
        permanent = PERMANENT.get(code)
        if code == "position" and channel.replayable:
            permanent, text = PositionLost, f"{text}; register the channel again to continue there"
        if permanent is None:
            return False
        error = permanent(f"channel {channel.id!r} was refused by {self.peer}: {text}")
        channel.fail(SenderEvent.GIVE_UP, error, now)
        return True

    def data_lost(self, channel: OutboundChannel, now: float) -> None:
        """A channel's data connection failed while this one lives: open it again."""
        if not channel.terminal:
            self._owner.reopen(channel, now)
