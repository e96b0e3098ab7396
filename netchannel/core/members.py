"""Several processes at one node, as the one sees them that has the node's address: which of them has which channel."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import ChannelInUse, NetChannelError, ProtocolError
from netchannel.values import MemberStatistics, check_channel_id

from .control import AcceptedControl
from .over import OVER_LIMIT
from .tombstones import Tombstone

if TYPE_CHECKING:
    from .messages import Message
    from .receiver import ReceiverCore

REASONS = ("end", "failed", "closed")
"""Why a stream is over, as tombstones say it."""


class Claim(NamedTuple):
    """A channel that a member has; ``number`` is how the member calls its claim."""

    number: int
    held: bool


def in_use(channel_id: str, holder: str) -> str:
    """Why a channel cannot be registered."""
    return (
        f"channel {channel_id!r} is registered at this node already, by {holder}: close or detach it there first, or "
        f"choose another id"
    )


class Members:
    """The other processes of this node, and the channels that they have.

    Each channel has one process. Who claims it first keeps it, with one exception: when this process was started anew,
    and somebody without a sender has claimed a channel before the one came back that has its sender all along.
    """

    def __init__(self, core: ReceiverCore) -> None:
        self.links: dict[MemberControl, None] = {}
        self._core = core
        self._holders: dict[str, MemberControl] = {}
        self._answering: dict[str, MemberControl] = {}  # for channels of theirs that are over

    def answering(self, channel_id: str) -> MemberControl | None:
        """The member that is asked about the channel: it has it, or answers what was done there."""
        return self._holders.get(channel_id) or self._answering.get(channel_id)

    def holder(self, channel_id: str) -> MemberControl | None:
        """The member that has the channel."""
        return self._holders.get(channel_id)

    def claim(self, link: MemberControl, channel_id: str, claim: Claim, now: float) -> None:
        """A member has registered a channel: senders are sent on to it, unless another process has the channel."""
        own, holder = self._core.channels.get(channel_id), self._holders.get(channel_id)
        if own is not None:
            if not claim.held or own.session is not None:
                link.taken(channel_id, claim, self._core.name, now)
                return
            own.fail(ChannelInUse(in_use(channel_id, link.peer)), now)
        elif holder is not None and holder is not link:
            theirs = holder.claims[channel_id]
            if not claim.held or theirs.held:
                link.taken(channel_id, claim, holder.peer, now)
                return
            del holder.claims[channel_id]
            holder.taken(channel_id, theirs, link.peer, now)
        self._holders[channel_id] = link
        link.claims[channel_id] = claim
        self._core.over.pop(channel_id, None)
        self.registered(channel_id)
        self._core.announce(channel_id)

    def registered(self, channel_id: str) -> None:
        """Somebody has the channel anew: who had it before is not asked any more."""
        self._answering.pop(channel_id, None)

    def release(self, link: MemberControl, channel_id: str) -> None:
        """A member has the channel no more; if it was never given it, another one keeps it."""
        if link.claims.pop(channel_id, None) is not None:
            del self._holders[channel_id]

    def over(self, link: MemberControl, message: Message, now: float) -> None:
        """A stream was over at a member: late requests get the answer here, where they come first."""
        channel_id = message["channel"]
        if channel_id in self._core.channels or self._holders.get(channel_id, link) is not link:
            return
        tombstone = Tombstone(message["count"], message["reason"], message["message"])
        self._core.tombstones.bury(channel_id, message["stream"], tombstone, now)
        if message.get("answers"):
            self._answering[channel_id] = link
            if len(self._answering) > OVER_LIMIT:
                del self._answering[next(iter(self._answering))]

    def joined(self, link: MemberControl) -> None:
        """A member has said where it listens. If somebody else was there, it is the same process, come back."""
        for other in [other for other in self.links if other.port == link.port]:
            self.left(other)
            other.abort(
                f"{link.peer} came with the same port {link.port}, of which each process needs its own"
            )
        self.links[link] = None

    def left(self, link: MemberControl) -> None:
        """A member is gone, and nobody has its channels."""
        self.links.pop(link, None)
        for channel_id in link.claims:
            del self._holders[channel_id]
        link.claims.clear()
        self._answering = {each: other for each, other in self._answering.items() if other is not link}


class MemberControl(AcceptedControl):
    """This process' end of the connection from a member."""

    role, other_role = b"node", b"member"

    def __init__(self, core: ReceiverCore, remote: str) -> None:
        super().__init__(core, remote)
        self.port = 0
        self.claims: dict[str, Claim] = {}

    def statistics_as_member(self) -> MemberStatistics:
        """Who it is, and how much it has."""
        return MemberStatistics(name=self.node, port=self.port, channels=len(self.claims))

    def taken(self, channel_id: str, claim: Claim, holder: str, now: float) -> None:
        """The member cannot have a channel."""
        text = in_use(channel_id, holder)
        self.core.complain(
            self.remote,
            now,
            "%s: a channel that %s registered is refused: %s",
            self.core.name,
            self.peer,
            text,
        )
        self.say("taken", channel=channel_id, number=claim.number, message=text)

    def told(self, message: Message, now: float) -> None:
        members = self._receiver.members
        match message["t"]:
            case "member":
                self._introduce(message["port"])
            case "claim":
                if not self.port:
                    raise ProtocolError(f"{self.peer} claims a channel and has not said its port")
                claim = Claim(message["number"], message["held"])
                members.claim(self, self._channel(message), claim, now)
            case "release":
                members.release(self, self._channel(message))
            case "over":
                if message["reason"] not in REASONS:
                    raise ProtocolError(f"{self.peer} says that a stream is over for no reason that there is")
                self._channel(message)
                members.over(self, message, now)
            case kind:
                raise ProtocolError(f"{self.peer} sent {kind!r}, which a member does not send")

    def _introduce(self, port: int) -> None:
        if self.port or not 0 < port < 1 << 16:
            raise ProtocolError(f"{self.peer} says that it listens at port {port}, before at {self.port}")
        self.port = port
        self._receiver.members.joined(self)

    def _channel(self, message: Message) -> str:
        try:
            return check_channel_id(message["channel"])
        except NetChannelError as error:
            raise ProtocolError(f"{self.peer} names a channel that cannot be: {error}") from error

    def _lost(self, reason: str, now: float) -> None:
        self._receiver.gone(self)
        self._receiver.members.left(self)
