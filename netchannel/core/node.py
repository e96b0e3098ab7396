"""A member of a node: its connection to the process that has the node's address, and what it says there."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.errors import ChannelInUse, HandshakeError, ProtocolError
from netchannel.values import PeerStatistics

from . import messages
from .backoff import Backoff
from .control import FOR_MEMBERS, ControlLink, greeting
from .link import log, printable
from .tombstones import ANY_STREAM

if TYPE_CHECKING:
    from .declared import Message
    from .inbound import InboundChannel
    from .receiver import ReceiverCore
    from .tombstones import Tombstone

COMPLAIN_AFTER_S = 5.0


class Node:
    """The node that this process is a member of, by the address at which it takes members.

    It is told of all channels that are registered here, and anew after each connection. ``port`` is where senders
    reach this process, at the host that they dial.
    """

    def __init__(self, core: ReceiverCore, address: str, port: int) -> None:
        self.core = core
        self.address = address
        self.port = port
        self.link: NodeControl | None = None
        self._claims: dict[str, int] = {}
        self._numbers = 0
        self._backoff = Backoff(core)
        self._failing_since: float | None = None
        self._complained = False

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

    def tell(self, channel_id: str, stream: str, tombstone: Tombstone) -> None:
        """A stream is over."""
        if (link := self._up) is not None:
            over = messages.Over(
                channel=channel_id,
                stream=stream,
                count=tombstone.messages,
                reason=tombstone.reason,
                message=tombstone.message,
                answers=channel_id in self.core.staged or channel_id in self.core.over,
            )
            link.say(over)

    @property
    def _up(self) -> NodeControl | None:
        return self.link if self.link is not None and self.link.greeted else None

    def established(self, link: NodeControl, now: float) -> None:
        """The connection is up: say everything."""
        self._backoff.established(now)
        link.say(messages.Member(port=self.port))
        for channel_id, stream, tombstone in self.core.tombstones.standing(now):
            # A channel that was not wanted here may be another process' since, whose streams are none of ours.
            if stream != ANY_STREAM:
                self.tell(channel_id, stream, tombstone)
        for channel in self.core.channels.values():
            self.claim(channel)

    def taken(self, channel_id: str, number: int, message: str, now: float) -> None:
        """Another process of the node has the channel."""
        if self._claims.get(channel_id) == number:
            self.core.channels[channel_id].fail(ChannelInUse(printable(message)), now)

    def lost(self, reason: str, now: float) -> None:
        """The connection is gone, or was not made. Streams go on without it; it is tried again."""
        self.link = None
        if self._backoff.lasted(now):
            self._failing_since, self._complained = None, False
        if self._failing_since is None:
            self._failing_since = now
        elif not self._complained and now - self._failing_since >= COMPLAIN_AFTER_S:
            self._complained = True
            log.warning(
                "%s: the node at %s is not reached for %.0f s: %s; senders that dial the node do not find the channels "
                "of this process meanwhile; still trying. Start the process that has members=%r, with the same secret=",
                self.core.name, self.address, now - self._failing_since, printable(reason), self.address,
            )  # fmt: skip
        self.core.timers.at(now + self._backoff.next(now), self.join)

    def statistics(self, now: float) -> PeerStatistics:
        """What is known of the connection, and how many channels were claimed."""
        link, channels = self.link, len(self._claims)
        if link is None:
            return PeerStatistics(address=self.address, name="", state="waiting", channels=channels)
        return link.statistics(channels, now)


class NodeControl(ControlLink):
    """The member's end."""

    role, other_role = b"member", b"node"
    dialed = True

    def __init__(self, node: Node) -> None:
        super().__init__(node.core, node.address)
        self.line = node.core.line(node.address)
        self._owner = node

    def connected(self, now: float) -> None:
        """Greet first: this side dialed."""
        self.send(greeting(FOR_MEMBERS))
        super().connected(now)

    def established(self, now: float) -> None:
        log.info("%s: is a member of the node of %s", self.core.name, self.peer)
        self._owner.established(self, now)

    def told(self, message: Message, now: float) -> None:
        if not isinstance(message, messages.Taken):
            raise ProtocolError(
                f"{self.peer} sent {message.kind!r}, which a node does not send to its members"
            )
        self._owner.taken(message.channel, message.number, message.message, now)

    def refused(self, error: HandshakeError, now: float) -> None:
        self.abort(str(error))

    def _lost(self, reason: str, now: float) -> None:
        self._owner.lost(reason, now)
