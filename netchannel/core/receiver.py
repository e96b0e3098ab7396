"""The receiving side without I/O: channels by id, the senders' control connections, tokens and tombstones."""

from __future__ import annotations

from collections import OrderedDict
from itertools import count
from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import ChannelInUse, ProtocolError

from . import messages
from .control import FOR_CONTROL, FOR_DATA, FOR_MEMBERS, FOR_READING, FOR_REQUESTS, AcceptedControl
from .data_receiver import Incoming, ReceiverData
from .inbound import InboundChannel
from .link import Core
from .members import MemberControl, Members, in_use
from .opening import Opening
from .producing import Producing
from .requests import RequestControl
from .retained import Retained
from .serving import ServingData
from .states import ReceiverState
from .tombstones import ANY_STREAM, Tombstone, Tombstones

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from netchannel.codec import Decoder
    from netchannel.values import BufferPolicy, FaultPolicy, Position

    from .declared import Message
    from .groups import StagedChannel
    from .link import Link
    from .node import Node
    from .over import Over
    from .requests import Service
    from .timing import Timing

WAITING_LIMIT = 100_000
"""Channels that senders have asked for and that nobody has registered: so many are remembered, of all senders."""
STRANGERS = 1024
"""Connections that have not shown who they are: that have said nothing, or whose handshake is not done."""


class ReadingToken(NamedTuple):
    """What a client may read, by a token that it has been given."""

    retained: Retained
    client: RequestControl


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
        self.max_connections = max_connections
        self.channels: dict[str, InboundChannel] = {}
        self.sessions: dict[ReceiverControl, None] = {}  # in the order in which they came
        self.services: dict[str, Service] = {}  # by channel: what it does for clients
        self.staged: dict[str, StagedChannel] = {}
        self.over: dict[str, StagedChannel | Over] = {}  # that what was done is still answered
        self.clients: dict[RequestControl, None] = {}
        self.on_client_gone: Callable[[], None] = lambda: None
        self.links: set[Link] = set()
        self.orders = count()
        self.silent: OrderedDict[Link, None] = OrderedDict()
        self.unproven: OrderedDict[Link, None] = OrderedDict()
        self.opening = Opening(self)
        self.lines: dict[
            bytes, AcceptedControl
        ] = {}  # the newest connection of each, and for a while behind it
        self.farewells: set[ReceiverData] = set()
        self.on_farewells_done: Callable[[], None] = lambda: None
        self._reading_tokens: dict[bytes, ReadingToken] = {}
        self.members = Members(self)
        self.node: Node | None = None
        self.tombstones = Tombstones()

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
        service: Service | None = None,
    ) -> InboundChannel:
        """Make a channel; senders that asked for it before are told. Raises ChannelInUse.

        Only the ``service`` of the channel, if it has one, registers it.
        """
        self.check_free(channel_id)
        known = self.services.get(channel_id)
        if isinstance(known, Retained) and known is not service:
            raise ChannelInUse(
                f"channel {channel_id!r} is kept in this process already: close or detach it first, or choose "
                f"another id"
            )
        channel = self.channels[channel_id] = InboundChannel(
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
        self.over.pop(channel_id, None)
        self.members.registered(channel_id)
        if self.node is not None:
            self.node.claim(channel)
        self.announce(channel_id)
        return channel

    def check_free(self, channel_id: str) -> None:
        """Raise ChannelInUse if somebody has the channel at this node."""
        if channel_id in self.channels:
            raise ChannelInUse(
                f"channel {channel_id!r} is registered in this process already, with "
                f"{self.channels[channel_id].holder or 'no sender yet'}: close it first, or choose another id"
            )
        if (member := self.members.holder(channel_id)) is not None:
            raise ChannelInUse(in_use(channel_id, member.peer))

    def make_way(self, channel_id: str, now: float) -> None:
        """A stream that is over, and served here, gives way to a new one."""
        known = self.services.get(channel_id)
        if isinstance(known, Producing) and known.over:
            known.leave(now, discard=True)

    def offer(self, producing: Producing) -> None:
        """Serve a stream that is made in this process. Raises ChannelInUse."""
        if producing.id in self.services:
            raise ChannelInUse(
                f"channel {producing.id!r} is registered in this process already: close it first, or choose another id"
            )
        self.services[producing.id] = producing

    def announce(self, channel_id: str) -> None:
        """Somebody has registered the channel: the senders that were denied it are told to ask again."""
        self.tombstones.registered(channel_id)
        self.invite(channel_id)

    def invite(self, channel_id: str) -> None:
        """Senders that were denied the channel are told to ask again."""
        for link in self._askers():
            if channel_id in link.waiting:
                link.waiting.discard(channel_id)
                link.say(messages.Ready(channel=channel_id))

    def retire(self, service: Service) -> None:
        """A service is over: nobody who has asked it need tell it any more when he leaves."""
        for client in self.clients:
            client.asked_of.pop(service, None)

    def released(self, channel: InboundChannel, now: float) -> None:
        """A channel is over: its id is free, its stream leaves a tombstone if nothing more can come of it."""
        channel.leave_session()
        registered = self.channels.get(channel.id) is channel  # and not an attempt for another one
        if registered:
            del self.channels[channel.id]
        reasons = {
            ReceiverState.ENDED: "end",
            ReceiverState.FAILED: "failed",
            ReceiverState.CLOSED: "closed",
        }
        reason = reasons.get(channel.state)
        if reason is not None:
            message = channel.last_word[:1000]
            if channel.failure is not None:
                reason = "failed"
            tombstone = Tombstone(channel.expected or 0, reason, message)
            self._bury(channel.id, channel.stream or ANY_STREAM, tombstone, now)
        if self.node is not None and registered:
            self.node.release(channel.id)

    def _bury(self, channel_id: str, stream: str, tombstone: Tombstone, now: float) -> None:
        self.tombstones.bury(channel_id, stream, tombstone, now)
        if self.node is not None:
            self.node.tell(channel_id, stream, tombstone)

    # -- connections

    def accept(self, remote: str) -> Incoming:
        """A connection came in, from a sender or a client."""
        return self._accept(remote, frozenset({FOR_CONTROL, FOR_DATA, FOR_REQUESTS, FOR_READING}))

    def accept_member(self, remote: str) -> Incoming:
        """A connection came in, from another process of this node."""
        return self._accept(remote, frozenset({FOR_MEMBERS}))

    def _accept(self, remote: str, purposes: frozenset[int]) -> Incoming:
        link = Incoming(self, remote, purposes)
        self.links.add(link)
        self.silent[link] = None
        return link

    def make_room(self, now: float) -> None:
        """Above the limits a stranger goes: the oldest of those that say nothing, or of those that do not get done.

        Of whichever are more: a flood of either kind drops its own, and a peer that goes through its handshake at an
        ordinary pace is neither for long.
        """
        strangers = len(self.silent) + len(self.unproven)
        if strangers <= STRANGERS and len(self.links) <= self.max_connections:
            return
        oldest, _ = max(self.silent, self.unproven, key=len).popitem(last=False)
        self.links.discard(oldest)
        oldest.abort()
        text = (
            "%s: %d connections are open, %d of them have not shown who they are; the limits are %d and %d: the "
            "oldest of these are dropped, %s is the first"
        )
        counts = (len(self.links) + 1, strangers, self.max_connections, STRANGERS)
        self.complain("", now, text, self.name, *counts, oldest.remote)

    def origin(self, remote: str) -> str:
        """A host, if it has one: each of its connections comes from another port."""
        return remote.rpartition(":")[0]

    def accepted(self, incoming: Incoming, purpose: int) -> Link:
        """An incoming connection has said what it is for: who takes it on."""
        self.gone(incoming)
        link = _KINDS[purpose](self, incoming.remote)
        self.links.add(link)
        self.unproven[link] = None
        return link

    def proven(self, link: Link) -> None:
        """A connection has shown that it may be here."""
        self.unproven.pop(link, None)

    def gone(self, link: Link) -> None:
        """A connection is none any more."""
        self.links.discard(link)
        self.silent.pop(link, None)
        self.unproven.pop(link, None)

    def is_newest(self, link: AcceptedControl) -> bool:
        """Whether no newer connection of its line was there before it was through its handshake; older ones go then."""
        known = self.lines.get(link.line)
        if known is not None and known.order > link.order:
            return False
        self.lines[link.line] = link
        if known is not None:
            known.abort(f"{link.peer} has come by a newer connection")
        return True

    def outlived(self, link: AcceptedControl, now: float) -> None:
        """A connection is gone. One that is older may still be in its handshake, for as long as that may take."""

        def forget(now: float) -> None:
            if self.lines.get(link.line) is link:
                del self.lines[link.line]

        if self.lines.get(link.line) is link:
            self.timers.at(now + self.timing.handshake_s, forget)

    def reading_token(self, retained: Retained, client: RequestControl, now: float) -> bytes:
        """A token for one connection on which ``client`` reads. Raises NetChannelError if it has too many unused."""
        token = self.random(messages.TOKEN_SIZE)
        client.hold(token)
        self._reading_tokens[token] = ReadingToken(retained, client)
        self.timers.at(now + self.timing.token_s, lambda _: self._forget_reading(token))
        return token

    def _forget_reading(self, token: bytes) -> None:
        self.redeem_reading(token)

    def redeem_reading(self, token: bytes) -> ReadingToken | None:
        """What ``token`` was given for, if it was not used, and who has it is still there."""
        found = self._reading_tokens.pop(token, None)
        if found is None:
            return None
        found.client.let_go(token)
        return found if found.client in self.clients else None

    def wait(self, link: ReceiverControl | RequestControl, channel_id: str) -> None:
        """Tell ``link`` when the channel is registered."""
        if sum(len(each.waiting) for each in self._askers()) < WAITING_LIMIT:
            link.waiting.add(channel_id)

    def _askers(self) -> Iterator[ReceiverControl | RequestControl]:
        yield from self.sessions
        yield from self.clients

    def left(self, session: ReceiverControl, reason: str, now: float) -> None:
        """A control connection is gone: what depended on it is lost."""
        self.gone(session)
        self.sessions.pop(session, None)
        self.opening.offers.left(session)
        for channel in list(session.channels):
            link = channel.link
            channel.leave_session()
            channel.lost(f"the control connection from {session.peer} failed: {reason}", now)
            if link is not None:
                link.supersede()


class ReceiverControl(AcceptedControl):
    """The receiver's end of a sender's control connection."""

    role, other_role = b"receiver", b"sender"

    def __init__(self, core: ReceiverCore, remote: str) -> None:
        super().__init__(core, remote)
        self.channels: dict[InboundChannel, None] = {}
        self.waiting: set[str] = set()
        self.tokens: dict[str, bytes] = {}  # that are out, by channel
        core.sessions[self] = None

    def told(self, message: Message, now: float) -> None:
        if not isinstance(message, messages.Open):
            raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a sender does not send")
        self._receiver.opening.asked(self, message, now)

    def _lost(self, reason: str, now: float) -> None:
        self._receiver.left(self, reason, now)


_KINDS: dict[int, Callable[[ReceiverCore, str], Link]] = {
    FOR_CONTROL: ReceiverControl,
    FOR_DATA: ReceiverData,
    FOR_MEMBERS: MemberControl,
    FOR_REQUESTS: RequestControl,
    FOR_READING: ServingData,
}
