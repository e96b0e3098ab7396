"""The receiving side without I/O: its channels, the peers that may connect to it, and its services for clients."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.calls.callees import Callee, Callees
from netchannel.core.connections import Connections
from netchannel.core.control_connection import FOR_CONTROL, FOR_DATA, FOR_MEMBERS, FOR_REQUESTS
from netchannel.core.link import Core
from netchannel.core.states import ReceiverState
from netchannel.errors import ChannelInUse

from .data_receiver import DelayedAcks, ReceiverData
from .inbound import InboundChannel
from .node_members import MemberControl, NodeMembers, channel_conflict, service_conflict
from .node_membership import NodeMembership
from .open_requests import OpenRequests
from .registry import Registry
from .requests import ChannelServices, RequestControl
from .sessions import ReceiverControl
from .tombstones import ANY_STREAM, Tombstone

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.core.connections import IncomingConnection
    from netchannel.policies import BufferPolicy, FaultPolicy, Timing
    from netchannel.values import Position
    from netchannel.wire.codec import Decoder

    from .requests import ChannelService

_TOMBS = {ReceiverState.ENDED: "end", ReceiverState.FAILED: "failed", ReceiverState.CLOSED: "closed"}
"""Why nothing more can come of a stream, by the state in which its channel is over."""


class ReceiverCore(Core):
    """All channels that a process receives on.

    ``message_limit`` is the largest message taken, in bytes; ``max_connections`` how many there may be at once.
    Other processes may be ``members`` of the node whose address this one has, or it is a member of ``node`` itself.
    """

    def __init__(
        self,
        name: str,
        timing: Timing,
        wall: Callable[[], int],
        random: Callable[[int], bytes],
        secret: bytes | None = None,
        *,
        message_limit: int,
        max_connections: int,
    ) -> None:
        super().__init__(name, timing, wall, random, secret)
        self.message_limit = message_limit
        self.sessions: dict[ReceiverControl, None] = {}  # in the order in which they came
        self.services = ChannelServices(self)
        self.callees = Callees()
        self.registry = Registry(self.services, self.callees)
        self.members = NodeMembers(name, self.registry)
        self.node: NodeMembership | None = None
        self.open_requests = OpenRequests(self, self.registry, self.members, message_limit)
        self._delayed_acks = DelayedAcks(self.timers)
        self.connections = Connections(self, max_connections)
        self.connections.kinds = {
            FOR_CONTROL: self._begin_session,
            FOR_DATA: lambda remote: ReceiverData(
                self, self.connections, self.open_requests, self._delayed_acks, remote
            ),
            FOR_MEMBERS: lambda remote: MemberControl(self, self.connections, self.members, remote),
            FOR_REQUESTS: lambda remote: RequestControl(
                self, self.connections, self.services, self.callees, remote
            ),
        }

    @property
    def channels(self) -> dict[str, InboundChannel]:
        """The channels that are registered, by id."""
        return self.registry.channels

    def register(
        self,
        channel_id: str,
        *,
        codec: str,
        decoder: Decoder,
        explicit: bool,
        resume_from: Position | int | None,
        buffer: BufferPolicy,
        fault: FaultPolicy,
        now: float,
        service: ChannelService | None = None,
    ) -> InboundChannel:
        """Make a channel; senders that asked for it before are notified. Raises ChannelInUse.

        Only the ``service`` of the channel, if it has one, registers it.
        """
        self.check_free(channel_id)
        if self.services.offered.get(channel_id, service) is not service:
            raise ChannelInUse(
                f"channel {channel_id!r} is already retained in this process: close or detach it first, or choose "
                f"another id"
            )
        channel = self.channels[channel_id] = InboundChannel(
            self,
            self,
            channel_id,
            codec=codec,
            decoder=decoder,
            explicit=explicit,
            resume_from=resume_from,
            buffer=buffer,
            fault=fault,
            now=now,
        )
        self.services.ledgers.pop(channel_id, None)
        self.members.registered(channel_id)
        if self.node is not None:
            self.node.claim(channel)
        self.announce(channel_id)
        return channel

    def check_free(self, channel_id: str) -> None:
        """Raise ChannelInUse if the channel is taken at this node."""
        if channel_id in self.channels:
            raise ChannelInUse(
                f"channel {channel_id!r} is already registered in this process, with "
                f"{self.channels[channel_id].holder or 'no sender yet'}: close it first, or choose another id"
            )
        if (member := self.members.holder(channel_id)) is not None:
            raise ChannelInUse(channel_conflict(channel_id, member.peer))

    def make_way(self, channel_id: str, now: float) -> None:
        """A stream that is over, and served here, gives way to a new one."""
        if (known := self.services.offered.get(channel_id)) is not None:
            known.make_way(now)

    def offer(self, channel_id: str, service: ChannelService) -> None:
        """Serve a stream that is made in this process. Raises ChannelInUse."""
        if channel_id in self.services.offered:
            raise ChannelInUse(
                f"channel {channel_id!r} is already registered in this process: close it first, or choose another id"
            )
        self.services.offered[channel_id] = service

    def provide(self, callee: Callee) -> None:
        """Have calls of a service answered; clients that wanted it before are notified. Raises ChannelInUse."""
        if callee.id in self.callees.registered:
            raise ChannelInUse(
                f"service {callee.id!r} is already registered in this process: close it first, or choose another id"
            )
        if (member := self.members.provider(callee.id)) is not None:
            raise ChannelInUse(service_conflict(callee.id, member.peer))
        self.callees.registered[callee.id] = callee
        if self.node is not None:
            self.node.provide(callee.id)
        self.callees.waitlist.invite(callee.id)

    def withdraw(self, callee: Callee) -> None:
        """Take no more calls of a service."""
        if self.callees.registered.get(callee.id) is callee:
            del self.callees.registered[callee.id]
            if self.node is not None:
                self.node.withdraw(callee.id)

    def announce(self, channel_id: str) -> None:
        """Senders of new streams may ask again: the channel was registered, or all of the last stream was read."""
        self.registry.announce(channel_id)

    def invite(self, channel_id: str) -> None:
        """Invite senders that were denied the channel to ask again."""
        self.services.invite(channel_id)

    def had_sender(self, channel_id: str) -> bool:
        """True if a stream of the channel was here before, and is over."""
        return self.registry.tombstones.has_streams(channel_id)

    def released(self, channel: InboundChannel, now: float) -> None:
        """A channel is over: its id is free, its stream leaves a tombstone if nothing more can come of it."""
        channel.leave_session()
        registered = self.channels.get(channel.id) is channel  # and not an attempt for another one
        if registered:
            del self.channels[channel.id]
        reason = _TOMBS.get(channel.state)
        if reason is not None:
            if channel.failure is not None:
                reason = "failed"
            tombstone = Tombstone(channel.expected or 0, reason, channel.last_word[:1000])
            self._bury(channel.id, channel.stream or ANY_STREAM, tombstone, now)
        if self.node is not None and registered:
            self.node.release(channel.id)

    def _bury(self, channel_id: str, stream: str, tombstone: Tombstone, now: float) -> None:
        self.registry.tombstones.bury(channel_id, stream, tombstone, now)
        if self.node is not None:
            self.node.tell(channel_id, stream, tombstone)

    def join(self, address: str, port: int, now: float) -> None:
        """Become a member of the node that takes members at ``address``; senders reach this process at ``port``."""
        self.node = NodeMembership(self, self.registry, address, port)
        self.node.join(now)

    # -- connections

    def accept(self, remote: str) -> IncomingConnection:
        """A connection came in, from a sender or a client."""
        return self.connections.accept(remote, self.connections.kinds.keys() - {FOR_MEMBERS})

    def accept_member(self, remote: str) -> IncomingConnection:
        """A connection came in, from another process of this node."""
        return self.connections.accept(remote, {FOR_MEMBERS})

    def origin(self, remote: str) -> str:
        """A host, if it has one: each of its connections comes from another port."""
        return remote.rpartition(":")[0]

    def _begin_session(self, remote: str) -> ReceiverControl:
        session = ReceiverControl(
            self, self.connections, remote, on_open=self.open_requests.asked, on_lost=self._left
        )
        self.sessions[session] = None
        return session

    def _left(self, session: ReceiverControl, reason: str, now: float) -> None:
        """A control connection is gone: what depended on it is lost."""
        self.connections.gone(session)
        del self.sessions[session]
        self.services.leave(session)
        self.open_requests.left(session, now)
        for channel in list(session.channels):
            link = channel.link
            channel.leave_session()
            channel.lost(f"the control connection from {session.peer} failed: {reason}", now)
            if link is not None:
                link.supersede()
