"""Requests of clients, which ask of a receiver's channels and send nothing, and the services that answer them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

from netchannel.core.calls.callees import IncomingCalls, at_port
from netchannel.core.client_core import ANSWERS, TOLD
from netchannel.core.connections import AcceptedControl
from netchannel.core.waitlist import Waitlist
from netchannel.errors import NetChannelError, ProtocolError
from netchannel.wire import messages
from netchannel.wire.declarations import as_map

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

    from netchannel.core.calls.callees import Callees
    from netchannel.core.connections import Connections
    from netchannel.core.link import Core
    from netchannel.core.waitlist import Asker
    from netchannel.wire.declarations import Message
    from netchannel.wire.frames import Buffer

OVER_LIMIT = 1000
"""Channels that are over, and still answer whether something was committed."""
HELD_LIMIT = 10_000
"""Watches, and tokens to read that were not used yet, of one client at most."""


UNANSWERED_BYTES = 1 << 24
"""The most bytes of one client's questions that are not answered yet: a disk may be slow, or full."""
_QUESTION_BYTES = 512
"""Bytes that any question counts, in addition to its strings."""


def _cost(message: messages.Question) -> int:
    if isinstance(message, (messages.Watch, *TOLD)):
        return 0  # answered at once, and again; or not at all
    return _QUESTION_BYTES + sum(
        len(value) for value in as_map(message).values() if isinstance(value, (str, bytes))
    )


class ChannelService(ABC):
    """A channel's services for clients, in addition to those for its consumer.

    ``broken``: why it takes nothing more, though it is served.
    """

    broken: NetChannelError | None = None

    @abstractmethod
    def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
        """Answer ``message``, now or later; False if that is not a thing to ask this channel for."""

    def left(self, client: RequestControl, now: float) -> None:  # noqa: B027 - not every service records its clients
        """Forget the state of a client's connection, as it is gone."""

    def make_way(self, now: float) -> None:  # noqa: B027 - few can
        """A new stream is to take the place of this one, if that is over."""


class CommitService(ChannelService):
    """A service, maybe of a channel that is over, that knows which groups were committed."""

    @abstractmethod
    def regressed(self, application: str, epoch: int) -> str | None:
        """Why there is no attempt at the epoch any more, if it is committed, or below one that is."""


class Grant(NamedTuple):
    """The purpose of a token, and the client that it was given to."""

    service: ChannelService
    client: RequestControl


class ChannelServices:
    """The services for clients, by channel, and their clients.

    ``ledgers`` still answer for channels that are over. ``is_channel`` returns true if an id is one of this
    process, ``member_port`` that of the process of this node that is to be asked.
    """

    def __init__(self, core: Core) -> None:
        self.offered: dict[str, ChannelService] = {}
        self.ledgers: dict[str, CommitService] = {}
        self.clients: dict[RequestControl, None] = {}
        self.is_channel: Callable[[str], bool] = lambda channel_id: False
        self.member_port: Callable[[str], int | None] = lambda channel_id: None
        self.on_client_gone: Callable[[], None] = lambda: None
        self._core = core
        self._given: dict[bytes, Grant] = {}
        self._waitlist = Waitlist(lambda channel_id: messages.Ready(channel=channel_id))

    def wait(self, link: Asker, channel_id: str) -> None:
        """Notify ``link`` when the channel is registered."""
        self._waitlist.wait(link, channel_id)

    def invite(self, channel_id: str) -> None:
        """Invite all clients that were denied the channel to ask again."""
        self._waitlist.invite(channel_id)

    def leave(self, link: Asker) -> None:
        """``link`` is gone, and waits for nothing any more."""
        self._waitlist.leave(link)

    def ended(self, channel_id: str, service: CommitService) -> None:
        """A channel is over, and ``service`` answers for it."""
        self.ledgers[channel_id] = service
        if len(self.ledgers) > OVER_LIMIT:
            del self.ledgers[next(iter(self.ledgers))]

    def retire(self, service: ChannelService) -> None:
        """A service is over: clients need not notify it any more when they leave."""
        for client in self.clients:
            client.asked_of.pop(service, None)

    def token(self, service: ChannelService, client: RequestControl, now: float) -> bytes:
        """A token for one more connection of ``client``. Raises NetChannelError if it has too many unused."""
        token = self._core.random(messages.TOKEN_SIZE)
        client.hold(token)
        self._given[token] = Grant(service, client)
        self._core.timers.at(now + self._core.timing.token_s, lambda _: self._forget(token))
        return token

    def _forget(self, token: bytes) -> None:
        self.redeem(token)

    def redeem(self, token: bytes) -> Grant | None:
        """Return the grant of ``token``, if it was not used, and its client is still there."""
        found = self._given.pop(token, None)
        if found is None:
            return None
        found.client.let_go(token)
        return found if found.client in self.clients else None


class RequestControl(AcceptedControl):
    """The receiver's end of a client's connection."""

    role, other_role = b"receiver", b"client"
    features = frozenset((messages.CALLS, messages.ENDS))

    def __init__(
        self, core: Core, connections: Connections, services: ChannelServices, callees: Callees, remote: str
    ) -> None:
        super().__init__(core, connections, remote)
        self._services = services
        self.calls = IncomingCalls(self, callees)
        self.waiting: set[str] = set()
        self.asked_of: dict[ChannelService, None] = {}
        self._held: set[Hashable] = set()
        self._unanswered = 0  # bytes
        services.clients[self] = None

    @property
    def asks(self) -> int:
        """How many channels it has asked for."""
        return len(self.asked_of)

    def hold(self, what: Hashable) -> None:
        """Count what is kept for this client until `let_go`. Raises NetChannelError if it is too much."""
        if what not in self._held and len(self._held) >= HELD_LIMIT:
            raise NetChannelError(
                f"{self.peer} has {len(self._held)} watches and unused tokens, and the limit is {HELD_LIMIT}: "
                f"close readers that are not needed, or use another connection"
            )
        self._held.add(what)

    def let_go(self, what: Hashable) -> None:
        """Stop counting what is not kept any more."""
        self._held.discard(what)

    def _received(self, n: int, now: float) -> None:
        self.calls.collecting = True
        try:
            super()._received(n, now)
        finally:
            self.calls.collecting = False
        if self._output:
            self.core.hurry(self)

    def output(self) -> list[Buffer]:
        """Return queued messages, then some pieces of large bodies."""
        if self.calls.has_turns:
            self.calls.collecting = True
            self.calls.take_turns()
            self.calls.collecting = False
        buffers = super().output()
        if self.calls.pieces:
            buffers += self.calls.pieces.next()
        self.more = bool(self.calls.pieces) or self.calls.has_turns
        return buffers

    def told(self, message: Message, now: float) -> None:
        if isinstance(message, (messages.Call, messages.CallPiece, messages.Cancel)):
            self.calls.told(message)
            return
        if not isinstance(message, messages.Question):
            raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a client does not send")
        self._unanswered += _cost(message)
        if self._unanswered > UNANSWERED_BYTES and _cost(message):
            text = f"{self.peer} has {self._unanswered} bytes of unanswered requests"
            self.deny(message, "busy", f"{text}, the limit is {UNANSWERED_BYTES}")
        elif not self._served(message, now) and not isinstance(message, TOLD):
            self._refuse(message)

    def _served(self, message: messages.Question, now: float) -> bool:
        """True if a service here answers it, now or later."""
        service = self._services.offered.get(message.channel)
        if service is not None:
            self.asked_of[service] = None
        else:
            service = self._services.ledgers.get(message.channel)
        return service is not None and service.asked(self, message, now)

    def _refuse(self, message: messages.Question) -> None:
        services, channel_id = self._services, message.channel
        if (
            channel_id in services.offered
            or channel_id in services.ledgers
            or services.is_channel(channel_id)
        ):
            self.deny(message, "policy", _not_offered(message))
        elif (port := services.member_port(channel_id)) is None:
            services.wait(self, channel_id)
            text = f"channel {channel_id!r} is not registered there with {_needed(message)}"
            self.deny(message, "unregistered", text)
        elif messages.ELSEWHERE in self.peer_features:
            self._reply(message, messages.Elsewhere, port=port)
        else:
            self.deny(message, "elsewhere", at_port(f"channel {channel_id!r}", port))

    def answer(self, message: messages.Question, **fields: Any) -> None:
        """Answer ``message``."""
        self._reply(message, ANSWERS[type(message)], **fields)

    def deny(self, message: messages.Question, code: str, text: str) -> None:
        """Refuse ``message``; `client.ERRORS` lists which codes are permanent."""
        self._reply(message, messages.Deny, code=code, message=text[:1000])

    def _reply(self, question: messages.Question, kind: type[messages.Answer], **fields: Any) -> None:
        self._unanswered -= _cost(question)
        self.say(kind(channel=question.channel, request=question.request, **fields))

    def _lost(self, reason: str, now: float) -> None:
        self.connections.gone(self)
        del self._services.clients[self]
        self._services.leave(self)
        self.calls.lost()
        for service in self.asked_of:
            service.left(self, now)
        self._services.on_client_gone()


_OF_GROUPS = (messages.Commit, messages.Drop, messages.Epoch)


def _needed(question: messages.Question) -> str:
    return "register_staged_channel(...)" if isinstance(question, _OF_GROUPS) else "retain_channel(...)"


def _not_offered(question: messages.Question) -> str:
    what = "does not accept groups" if isinstance(question, _OF_GROUPS) else "retains nothing for readers"
    return f"channel {question.channel!r} {what}: register it there with {_needed(question)}"
