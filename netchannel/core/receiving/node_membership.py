"""A member of a node: its connection to the process that has the node's address, and its messages there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.backoff import Backoff
from netchannel.core.control_connection import FOR_MEMBERS
from netchannel.core.dialer import DialedControl, Dialer
from netchannel.core.retries import Episode
from netchannel.errors import ChannelInUse, HandshakeError, ProtocolError
from netchannel.log_texts import log, printable
from netchannel.statistics import PeerStatistics
from netchannel.wire import messages

from .tombstones import ANY_STREAM

if TYPE_CHECKING:
    from netchannel.core.link import Core
    from netchannel.wire.declarations import Message

    from .inbound import InboundChannel
    from .registry import Registry
    from .tombstones import Tombstone


class NodeMembership(Dialer):
    """The node that this process is a member of, by the address at which it takes members.

    It is notified of all channels and services that are registered here, and again after each connection.
    ``port`` is where senders reach this process, at the host that they dial.
    """

    def __init__(self, core: Core, registry: Registry, address: str, port: int) -> None:
        self.core = core
        self._registry = registry
        self.address = address
        self.port = port
        self.link: NodeControl | None = None
        self._claims: dict[str, int] = {}
        self._services: dict[str, int] = {}
        self._numbers = 0
        self._backoff = Backoff(core)
        self._episode = Episode()

    def join(self, now: float) -> None:
        """Connect."""
        self.link = NodeControl(self)
        self.core.dial(self.link)

    def claim(self, channel: InboundChannel) -> None:
        """A channel is registered here."""
        self._numbers += 1
        self._claims[channel.id] = self._numbers
        if (link := self._up) is not None:
            link.say(
                messages.Claim(channel=channel.id, number=self._numbers, held=channel.session is not None)
            )

    def release(self, channel_id: str) -> None:
        """A channel is registered here no more."""
        del self._claims[channel_id]
        if (link := self._up) is not None:
            link.say(messages.Release(channel=channel_id))

    def provide(self, service_id: str) -> None:
        """A service is registered here."""
        self._numbers += 1
        self._services[service_id] = self._numbers
        if (link := self._up) is not None and messages.CALLS in link.peer_features:
            link.say(messages.Provide(service=service_id, number=self._numbers))

    def withdraw(self, service_id: str) -> None:
        """A service is registered here no more."""
        del self._services[service_id]
        if (link := self._up) is not None and messages.CALLS in link.peer_features:
            link.say(messages.Withdraw(service=service_id))

    def tell(self, channel_id: str, stream: str, tombstone: Tombstone) -> None:
        """A stream is over."""
        if (link := self._up) is not None:
            over = messages.Over(
                channel=channel_id,
                stream=stream,
                count=tombstone.messages,
                reason=tombstone.reason,
                message=tombstone.message,
                answers=channel_id in self._registry.staged or channel_id in self._registry.services.ledgers,
            )
            link.say(over)

    @property
    def _up(self) -> NodeControl | None:
        return self.link if self.link is not None and self.link.greeted else None

    def established(self, now: float) -> None:
        link = self.link
        assert link is not None
        self._backoff.established(now)
        link.say(messages.Member(port=self.port))
        for channel_id, stream, tombstone in self._registry.tombstones.standing(now):
            # A channel that was not wanted here may belong to another process since, whose streams are not
            # ours.
            if stream != ANY_STREAM:
                self.tell(channel_id, stream, tombstone)
        for channel in self._registry.channels.values():
            self.claim(channel)
        for service_id in self._registry.callees.registered:
            self.provide(service_id)
        if self._services and messages.CALLS not in link.peer_features:
            log.warning(
                "%s: the node at %s does not support services, so the %d services of this process cannot be found "
                "there; start a newer version of it", self.core.name, self.address, len(self._services),
            )  # fmt: skip

    def taken(self, channel_id: str, number: int, message: str, now: float) -> None:
        """Another process of the node has the channel."""
        if self._claims.get(channel_id) == number:
            self._registry.channels[channel_id].fail(ChannelInUse(printable(message)), now)

    def provided(self, service_id: str, number: int, message: str) -> None:
        """Another process of the node has the service."""
        if self._services.get(service_id) == number:
            self._registry.callees.registered[service_id].on_taken(printable(message))

    def lost(self, reason: str, now: float) -> None:
        self.link = None
        if self._backoff.lasted(now):
            self._episode.over()
        if (failing_s := self._episode.failed(now)) is not None:
            log.warning(
                "%s: the node at %s has not been reached for %.0f s: %s; meanwhile senders that dial the node do "
                "not find the channels of this process; still trying. Start the process that has members=%r, with "
                "the same secret=",
                self.core.name, self.address, failing_s, printable(reason), self.address,
            )  # fmt: skip
        self.core.timers.at(now + self._backoff.next(now), self.join)

    def statistics(self, now: float) -> PeerStatistics:
        """Return the statistics of the connection, and how many channels were claimed."""
        link, channels = self.link, len(self._claims)
        if link is None:
            return PeerStatistics(address=self.address, name="", state="waiting", channels=channels)
        return link.statistics(channels, now)


class NodeControl(DialedControl):
    """The member's end."""

    role, other_role = b"member", b"node"
    purpose = FOR_MEMBERS
    up = "%s: joined the node of %s"

    def __init__(self, node: NodeMembership) -> None:
        super().__init__(node, node.address)
        self._owner = node

    def told(self, message: Message, now: float) -> None:
        match message:
            case messages.Taken():
                self._owner.taken(message.channel, message.number, message.message, now)
            case messages.Provided():
                self._owner.provided(message.service, message.number, message.message)
            case _:
                raise ProtocolError(
                    f"{self.peer} sent {message.kind!r}, which a node does not send to its members"
                )

    def refused(self, error: HandshakeError, now: float) -> None:
        self.abort(str(error))  # and tried again: the other process may be restarted with the missing feature
