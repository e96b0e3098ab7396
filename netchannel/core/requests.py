"""Clients of a receiver's channels: who asks without sending, and who answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from netchannel.errors import NetChannelError, ProtocolError

from . import messages
from .client import ANSWERS, TOLD
from .control import AcceptedControl
from .declared import as_map

if TYPE_CHECKING:
    from collections.abc import Hashable

    from .declared import Message
    from .receiver import ReceiverCore


HELD_LIMIT = 10_000
"""Watches, and tokens to read that were not used yet, of one client at most."""


UNANSWERED_BYTES = 1 << 24
"""Of the questions of one client that are not answered yet, at most: a disk may be slow, or full."""
_QUESTION_BYTES = 512
"""Of any question, beside its texts."""


def _cost(message: messages.Question) -> int:
    if isinstance(message, (messages.Watch, *TOLD)):
        return 0  # answered at once, and again; or not at all
    return _QUESTION_BYTES + sum(
        len(value) for value in as_map(message).values() if isinstance(value, (str, bytes))
    )


class Service(ABC):
    """What a channel of this receiver does for clients, beside what it does for its consumer.

    ``broken``: why it takes nothing more, though it is served.
    """

    broken: NetChannelError | None = None

    @abstractmethod
    def asked(self, client: RequestControl, message: messages.Question, now: float) -> bool:
        """Answer ``message``, now or later; False if that is not a thing to ask this channel for."""

    def left(self, client: RequestControl, now: float) -> None:  # noqa: B027 - not every service keeps who asked
        """The connection of somebody who has asked is gone."""


class RequestControl(AcceptedControl):
    """The receiver's end of a client's connection."""

    role, other_role = b"receiver", b"client"

    def __init__(self, core: ReceiverCore, remote: str) -> None:
        super().__init__(core, remote)
        self.waiting: set[str] = set()
        self.asked_of: dict[Service, None] = {}
        self._held: set[Hashable] = set()
        self._unanswered = 0  # bytes
        core.clients[self] = None

    @property
    def asks(self) -> int:
        """How many channels it has asked for."""
        return len(self.asked_of)

    def hold(self, what: Hashable) -> None:
        """Count what is kept for this client until `let_go`. Raises NetChannelError if it is too much."""
        if what not in self._held and len(self._held) >= HELD_LIMIT:
            raise NetChannelError(
                f"{self.peer} has {len(self._held)} watches and unused tokens, and a client may have {HELD_LIMIT}: "
                "close readers that are not needed, or use another connection"
            )
        self._held.add(what)

    def let_go(self, what: Hashable) -> None:
        """It is not kept any more."""
        self._held.discard(what)

    def told(self, message: Message, now: float) -> None:
        if not isinstance(message, messages.Question):
            raise ProtocolError(f"{self.peer} sent {message.kind!r}, which a client does not send")
        self._unanswered += _cost(message)
        if self._unanswered > UNANSWERED_BYTES and _cost(message):
            text = f"{self.peer} has asked for {self._unanswered} bytes that are not answered yet"
            self.deny(message, "busy", f"{text}, the limit is {UNANSWERED_BYTES}")
        elif not self._served(message, now) and not isinstance(message, TOLD):
            self._refuse(message)

    def _served(self, message: messages.Question, now: float) -> bool:
        """Whether there is somebody here who answers it, now or later."""
        core, channel_id = self._receiver, message.channel
        service = core.services.get(channel_id)
        if service is not None:
            self.asked_of[service] = None
        else:
            service = core.over.get(channel_id)
        return service is not None and service.asked(self, message, now)

    def _refuse(self, message: messages.Question) -> None:
        core, channel_id = self._receiver, message.channel
        if channel_id in core.services or channel_id in core.over or channel_id in core.channels:
            self.deny(message, "policy", _not_offered(message))
        elif (member := core.members.answering(channel_id)) is not None:
            self._reply(message, messages.Elsewhere, port=member.port)
        else:
            core.wait(self, channel_id)
            text = f"channel {channel_id!r} is not registered there with {_needed(message)}"
            self.deny(message, "unregistered", text)

    def answer(self, message: messages.Question, **fields: Any) -> None:
        """Answer ``message``."""
        self._reply(message, ANSWERS[type(message)], **fields)

    def deny(self, message: messages.Question, code: str, text: str) -> None:
        """Refuse ``message``; which codes are for good, `client.ERRORS` says."""
        self._reply(message, messages.Deny, code=code, message=text[:1000])

    def _reply(self, question: messages.Question, kind: type[messages.Answer], **fields: Any) -> None:
        self._unanswered -= _cost(question)
        self.say(kind(channel=question.channel, request=question.request, **fields))

    def _lost(self, reason: str, now: float) -> None:
        self._receiver.gone(self)
        self._receiver.clients.pop(self, None)
        for service in self.asked_of:
            service.left(self, now)
        self._receiver.on_client_gone()


_OF_GROUPS = (messages.Commit, messages.Drop, messages.Epoch)


def _needed(question: messages.Question) -> str:
    return "staging=StagingPolicy(...)" if isinstance(question, _OF_GROUPS) else "retain=RetainPolicy(...)"


def _not_offered(question: messages.Question) -> str:
    what = "takes no groups" if isinstance(question, _OF_GROUPS) else "keeps nothing to be read"
    return f"channel {question.channel!r} {what}: register it there with {_needed(question)}"
