"""Several processes at one node, as the one sees them that has the node's address: which of them has which channel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.connections import AcceptedControl
from netchannel.errors import ChannelInUse, ProtocolError
from netchannel.statistics import MemberStatistics
from netchannel.wire import messages

from .requests import OVER_LIMIT
from .tombstones import Tombstone

if TYPE_CHECKING:
    from netchannel.core.connections import Connections
    from netchannel.core.link import Core
    from netchannel.wire.declarations import Message

    from .registry import Registry


def channel_conflict(channel_id: str, holder: str) -> str:
    """Why a channel cannot be registered."""
    return (
        f"channel {channel_id!r} is already registered at this node, by {holder}: close or detach it there first, or "
        f"choose another id"
    )


def service_conflict(service_id: str, holder: str) -> str:
    """Why a service cannot be registered."""
    return (
        f"service {service_id!r} is already registered at this node, by {holder}: close it there first, or choose "
        f"another id"
    )


class NodeMembers:
    """The other processes of this node, and the channels and services that they have.

    Each channel has one process. The first to claim it keeps it, with one exception: after a restart of this
    process, a member without a sender may have claimed a channel before the member returned that still has
    its sender.
    """

    def __init__(self, name: str, registry: Registry) -> None:
        self.links: dict[MemberControl, None] = {}
        self._name = name
        self._registry = registry
        registry.services.member_port = self.holder_port
        registry.callees.member_port = self._provider_port
        self._holders: dict[str, MemberControl] = {}
        self._former_holders: dict[str, MemberControl] = {}  # for channels of theirs that are over
        self._providers: dict[str, MemberControl] = {}  # of services

    def holder_port(self, channel_id: str) -> int | None:
        """The port of the member that is asked of the channel: it has it, or had it and knows what was done there."""
        member = self._holders.get(channel_id) or self._former_holders.get(channel_id)
        return None if member is None else member.port

    def holder(self, channel_id: str) -> MemberControl | None:
        """The member that has the channel."""
        return self._holders.get(channel_id)

    def provider(self, service_id: str) -> MemberControl | None:
        """The member that has the service."""
        return self._providers.get(service_id)

    def _provider_port(self, service_id: str) -> int | None:
        provider = self._providers.get(service_id)
        return None if provider is None else provider.port

    def provide(self, link: MemberControl, claim: messages.Provide, now: float) -> None:
        """A member has registered a service: calls are sent on to it, unless another process has the service."""
        service_id = claim.service
        provider = self._providers.get(service_id, link)
        if service_id in self._registry.callees.registered:
            link.provided(claim, self._name, now)
        elif provider is not link:
            link.provided(claim, provider.peer, now)
        else:
            self._providers[service_id] = link
            link.services.add(service_id)
            self._registry.callees.waitlist.invite(service_id)

    def withdraw(self, link: MemberControl, service_id: str) -> None:
        """A member has the service no more; if it was never given it, another one keeps it."""
        if service_id in link.services:
            link.services.remove(service_id)
            del self._providers[service_id]

    def claim(self, link: MemberControl, claim: messages.Claim, now: float) -> None:
        """A member has registered a channel: senders are sent on to it, unless another process has the channel."""
        channel_id = claim.channel
        own, holder = self._registry.channels.get(channel_id), self._holders.get(channel_id)
        if own is not None:
            if not claim.held or own.session is not None:
                link.taken(claim, self._name, now)
                return
            own.fail(ChannelInUse(channel_conflict(channel_id, link.peer)), now)
        elif holder is not None and holder is not link:
            theirs = holder.claims[channel_id]
            if not claim.held or theirs.held:
                link.taken(claim, holder.peer, now)
                return
            del holder.claims[channel_id]
            holder.taken(theirs, link.peer, now)
        self._holders[channel_id] = link
        link.claims[channel_id] = claim
        self._registry.services.ledgers.pop(channel_id, None)
        self.registered(channel_id)
        self._registry.announce(channel_id)

    def registered(self, channel_id: str) -> None:
        """Note that the channel has a new owner: the previous one is no longer asked."""
        self._former_holders.pop(channel_id, None)

    def release(self, link: MemberControl, channel_id: str) -> None:
        """A member has the channel no more; if it was never given it, another one keeps it."""
        if link.claims.pop(channel_id, None) is not None:
            del self._holders[channel_id]

    def over(self, link: MemberControl, message: messages.Over, now: float) -> None:
        """A stream was over at a member: late requests get the answer here, where they come first."""
        channel_id = message.channel
        if channel_id in self._registry.channels or self._holders.get(channel_id, link) is not link:
            return
        tombstone = Tombstone(message.count, message.reason, message.message)
        self._registry.tombstones.bury(channel_id, message.stream, tombstone, now)
        if message.answers:
            self._former_holders[channel_id] = link
            if len(self._former_holders) > OVER_LIMIT:
                del self._former_holders[next(iter(self._former_holders))]

    def joined(self, link: MemberControl) -> None:
        """A member has sent the port at which it listens.

        If another member had this port, it is the same process, come back.
        """
        for other in [other for other in self.links if other.port == link.port]:
            if other.order > link.order:
                link.abort(f"{other.peer} connected later with the same port {link.port}")
                return
            self.left(other)
            other.abort(
                f"{link.peer} connected with the same port {link.port}, but each process needs its own port"
            )
        self.links[link] = None

    def left(self, link: MemberControl) -> None:
        """A member is gone, and its channels have no owner."""
        self.links.pop(link, None)
        for channel_id in link.claims:
            del self._holders[channel_id]
        link.claims.clear()
        for service_id in link.services:
            del self._providers[service_id]
        link.services.clear()
        self._former_holders = {
            each: other for each, other in self._former_holders.items() if other is not link
        }


class MemberControl(AcceptedControl):
    """This process' end of the connection from a member."""

    role, other_role = b"node", b"member"
    features = frozenset((messages.CALLS,))

    def __init__(self, core: Core, connections: Connections, members: NodeMembers, remote: str) -> None:
        super().__init__(core, connections, remote)
        self._members = members
        self.port = 0
        self.claims: dict[str, messages.Claim] = {}
        self.services: set[str] = set()

    def statistics_as_member(self) -> MemberStatistics:
        """The member's name, its port, and how many channels it has."""
        return MemberStatistics(name=self.node, port=self.port, channels=len(self.claims))

    def taken(self, claim: messages.Claim, holder: str, now: float) -> None:
        """The member cannot have a channel."""
        text = channel_conflict(claim.channel, holder)
        self._complain("%s: a channel that %s registered is refused: %s", text, now)
        self.say(messages.Taken(channel=claim.channel, number=claim.number, message=text))

    def provided(self, claim: messages.Provide, holder: str, now: float) -> None:
        """The member cannot have a service."""
        text = service_conflict(claim.service, holder)
        self._complain("%s: a service that %s registered is refused: %s", text, now)
        self.say(messages.Provided(service=claim.service, number=claim.number, message=text))

    def _complain(self, told: str, text: str, now: float) -> None:
        self.core.complain(self.remote, now, told, self.core.name, self.peer, text)

    def told(self, message: Message, now: float) -> None:
        members = self._members
        match message:
            case messages.Member():
                self._introduce(message.port)
            case messages.Claim():
                self._check_introduced("a channel")
                members.claim(self, message, now)
            case messages.Provide():
                self._check_introduced("a service")
                members.provide(self, message, now)
            case messages.Withdraw():
                members.withdraw(self, message.service)
            case messages.Release():
                members.release(self, message.channel)
            case messages.Over():
                members.over(self, message, now)
            case _:
                raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a member does not send")

    def _check_introduced(self, what: str) -> None:
        if not self.port:
            raise ProtocolError(f"{self.peer} claims {what}, but has not sent its port")

    def _introduce(self, port: int) -> None:
        if self.port:
            raise ProtocolError(
                f"{self.peer} reports that it listens at port {port}, but reported {self.port} before"
            )
        self.port = port
        self._members.joined(self)

    def _lost(self, reason: str, now: float) -> None:
        self.connections.gone(self)
        self._members.left(self)
