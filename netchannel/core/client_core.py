"""A client of receivers, without I/O: a connection to each, on which it asks of channels and is answered.

A question can be repeated with the same outcome: all questions are, after a lost connection, until they are
answered.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from netchannel.errors import (
    AttemptLost,
    ChannelBroken,
    ChannelClosed,
    ChannelInUse,
    ConsumerFenced,
    EpochRegressed,
    HandshakeError,
    NetChannelError,
    PositionLost,
    ProtocolError,
    SchemaMismatch,
    StreamReplaced,
)
from netchannel.log_texts import log, printable
from netchannel.wire import messages
from netchannel.wire.envelope import check_sendable

from .control_connection import FOR_REQUESTS
from .dialer import DialedControl, Peer
from .link import Core
from .retries import Episode, Retries

if TYPE_CHECKING:
    from collections.abc import Callable

    from netchannel.policies import FaultPolicy
    from netchannel.wire.declarations import Message

    from .timers import Timer

ANSWERS: dict[type[messages.Question], type[messages.Answer]] = {
    messages.Watch: messages.Heads,
    messages.Locate: messages.Located,
    messages.When: messages.Moment,
    messages.Read: messages.Reading,
    messages.Hold: messages.Held,
    messages.Acknowledge: messages.Acknowledged,
    messages.Forget: messages.Forgotten,
    messages.Commit: messages.Committed,
    messages.Drop: messages.Dropped,
    messages.Epoch: messages.EpochIs,
}
"""Questions, and the types of their answers."""

ON_EACH_CONNECTION = (messages.Watch, messages.Hold, messages.Read)
"""Questions that are repeated on each new connection: an answer to them is not progress."""

TOLD = (messages.Yield, messages.Unwatch)
"""Other messages of a client, which are not answered."""

ERRORS: dict[str, type[NetChannelError]] = {
    "policy": NetChannelError,
    "codec": SchemaMismatch,
    "schema": SchemaMismatch,
    "position": PositionLost,
    "replaced": StreamReplaced,
    "held": ChannelInUse,
    "fenced": ConsumerFenced,
    "regressed": EpochRegressed,
    "attempt": AttemptLost,
    "ended": ChannelClosed,
    "failed": ChannelBroken,
}
"""Codes of refusals that are for good, and what they raise; with any other code the question is asked again."""

HELD_UP = "full"
"""The code of a receiver that is there, and has no room until its consumer, or its disk, makes some."""

_ANY_NUMBER = (1 << 63) - 1
"""The largest number of a question: no other takes more bytes."""


class PendingQuestion:
    """Something asked, until it is answered: ``answered`` or ``failed`` is called, once (`watch`: at each push)."""

    __slots__ = ("answered", "channel", "failed", "fields", "kind", "number", "refused")

    def __init__(
        self,
        channel: ClientChannel,
        kind: type[messages.Question],
        fields: dict[str, Any],
        answered: Callable[[Any, float], None],
        failed: Callable[[NetChannelError, float], None],
    ) -> None:
        self.channel = channel
        self.kind = kind
        self.fields = fields
        self.answered = answered
        self.failed = failed
        self.number = 0
        self.refused = False  # for now: the receiver sends a notice when to ask again


class ClientCore(Core):
    """All that a process asks receivers."""

    def __init__(
        self,
        name: str,
        timing: Any,
        wall: Callable[[], int],
        random: Callable[[int], bytes],
        secret: bytes | None = None,
    ) -> None:
        super().__init__(name, timing, wall, random, secret)
        self.peers: dict[tuple[str, str], ClientPeer] = {}  # by what is dialed, and on whose word
        self.questions: dict[int, PendingQuestion] = {}
        self._numbers = 0

    def enter(self, question: PendingQuestion) -> None:
        """Give it a number, which no other has, until it is answered."""
        self._numbers += 1
        question.number = self._numbers
        self.questions[question.number] = question

    def register(self, channel_id: str, to: str, fault: FaultPolicy, now: float) -> ClientChannel:
        """Begin to ask for a channel at the receiver ``to``."""
        channel = ClientChannel(self, channel_id, to, fault, now)
        self.peer(to, to).join(channel)
        return channel

    def peer(self, address: str, node: str) -> ClientPeer:
        """The receiver at ``address``, as ``node`` named it."""
        found = self.peers.get((address, node))
        if found is None:
            found = self.peers[address, node] = ClientPeer(self, address, node)
        return found


class ClientChannel:
    """A channel of a receiver, from the side of a client that asks for it.

    ``on_lost`` is called when the connection that the last answers came on is gone.
    """

    def __init__(self, core: ClientCore, channel_id: str, to: str, fault: FaultPolicy, now: float) -> None:
        self.core = core
        self.id = channel_id
        self.to = to
        self.fault = fault
        self.error: NetChannelError | None = None
        self.on_lost: Callable[[str, float], None] = lambda reason, now: None
        self.questions: dict[int, PendingQuestion] = {}
        self.peer: ClientPeer
        self._last_failure = "it has not answered"
        self._held_up = False  # this was logged
        self._again: Timer | None = (
            None  # one for all questions that were refused: each of them would ask all again
        )
        self._return: Timer | None = None  # to where it was looked for first
        self._retries = Retries(core.timers, fault, give_up=self._gave_up, wait_on=self._waits_on, now=now)

    def ask(
        self,
        kind: type[messages.Question],
        answered: Callable[[Any, float], None],
        failed: Callable[[NetChannelError, float], None],
        now: float,
        **fields: Any,
    ) -> PendingQuestion:
        """Ask until there is an answer. Raises what ended the channel, and ValueError for what cannot be asked.

        Such a question would close the connection, which others use, whenever it is asked again.
        """
        self.check_live()
        try:
            check_sendable(kind(channel=self.id, request=_ANY_NUMBER, **fields))
        except ProtocolError as error:
            raise ValueError(f"channel {self.id!r}: invalid request: {error}") from error
        question = PendingQuestion(self, kind, fields, answered, failed)
        self.core.enter(question)
        self.questions[question.number] = question
        self.peer.ask(question, now)
        return question

    def forget(self, question: PendingQuestion) -> None:
        """Forget a question whose answer is no longer wanted."""
        self.questions.pop(question.number, None)
        self.core.questions.pop(question.number, None)

    def check_live(self) -> None:
        """Raise what ended the channel, if anything did."""
        if self.error is not None:
            raise type(self.error)(*self.error.args)

    def tell(self, kind: type[messages.Question], **fields: Any) -> None:
        """Send a message that is not answered.

        Without a connection it is not needed, as its loss has the same effect.
        """
        control = self.peer.control
        if control is not None and control.greeted:
            control.say(kind(channel=self.id, **fields))

    def close(self, now: float) -> None:
        """Ask no more."""
        self.fail(
            ChannelClosed(f"the client of channel {self.id!r} at {self.to} was closed by this side"), now
        )

    def fail(self, error: NetChannelError, now: float) -> None:
        """Give up: all questions fail with ``error``."""
        if self.error is not None:
            return
        self.error = error
        self._retries.stop()
        self.peer.leave(self, now)
        for question in list(self.questions.values()):
            self.forget(question)
            question.failed(type(error)(*error.args), now)
        self.on_lost(str(error), now)

    def ask_again(self, now: float) -> None:
        """Ask what was refused for now."""
        for question in list(self.questions.values()):
            if question.refused:
                self.peer.ask(question, now)

    def ask_again_later(self, now: float) -> None:
        """The same, after a while."""

        def again(now: float) -> None:
            self._again = None
            self.ask_again(now)

        if self._again is None:
            # At random within the limit: clients that were refused together are not to come back together.
            wait = self.core.timing.backoff_limit_s * self.core.jitter()
            self._again = self.core.timers.at(now + wait, again)

    def ask_the_node(self, now: float) -> None:
        """Ask everything where it was looked for first, a little later."""

        def go_back(now: float) -> None:
            self._return = None
            if self.error is None:
                self.peer.send_back(self, now)

        if self._return is None:
            wait = self.core.timing.backoff_s * self.core.jitter()
            self._return = self.core.timers.at(now + wait, go_back)

    def unreachable(self, reason: str, now: float) -> None:
        """The receiver is away, or does not have the channel."""
        self._last_failure = reason
        self._retries.failed(now)

    def held_up(self, reason: str, now: float) -> None:
        """Wait for room at the receiver, as a sender does: it is not away, however long that takes."""
        self._retries.stop()
        if not self._held_up:
            self._held_up = True
            self.core.warning_digest.warn(
                now,
                "channel %s at %s has no room yet: %s; still waiting",
                self.id,
                self.to,
                printable(reason),
            )

    def reached(self) -> None:
        """Note that it has answered."""
        self._retries.stop()
        self._held_up = False

    def _waits_on(self, now: float) -> None:
        self.core.warning_digest.warn(
            now,
            "channel %s at %s gave no answer for %s s: %s; still waiting",
            self.id, self.to, self.fault.retry, printable(self._last_failure),
        )  # fmt: skip

    def _gave_up(self, within: str, now: float) -> None:
        within = f" within {within}" if within else ""
        text = f"channel {self.id!r} at {self.to} gave no answer{within}: {self._last_failure}"
        self.fail(ChannelBroken(text), now)


class ClientPeer(Peer["ClientControl"]):
    """A receiver that is asked: the connection to it, and the channels that it is asked for."""

    core: ClientCore

    def __init__(self, core: ClientCore, address: str, node: str) -> None:
        super().__init__(core, address, node)
        self.channels: dict[ClientChannel, None] = {}
        self._episode = Episode()

    @property
    def wanted(self) -> bool:
        return bool(self.channels)

    def _make_control(self) -> ClientControl:
        return ClientControl(self)

    def _forget(self) -> None:
        if self.core.peers.get((self.address, self.node)) is self:
            del self.core.peers[self.address, self.node]

    def join(self, channel: ClientChannel) -> None:
        """``channel`` is asked for here."""
        self.channels[channel] = None
        channel.peer = self
        self.reach()

    def leave(self, channel: ClientChannel, now: float) -> None:
        """``channel`` is asked for no more; after the last one the connection is closed a little later."""
        self.channels.pop(channel, None)
        self.idle(now)

    def ask(self, question: PendingQuestion, now: float) -> None:
        """Send it, if there is a connection; otherwise once there is one."""
        if self.control is not None and self.control.greeted:
            question.refused = False
            self.control.say(
                question.kind(channel=question.channel.id, request=question.number, **question.fields)
            )

    def established(self, now: float) -> None:
        self._backoff.established(now)
        for channel in list(self.channels):
            for question in list(channel.questions.values()):
                self.ask(question, now)

    def progressed(self) -> None:
        """Note that it has done what it was asked for."""
        self._backoff.reset()
        self._episode.over()

    def ready(self, channel_id: str, now: float) -> None:
        """The receiver has it now."""
        for channel in [channel for channel in self.channels if channel.id == channel_id]:
            channel.ask_again(now)

    def answered(self, answer: messages.Answer, now: float) -> None:
        """The receiver answers a question."""
        question = self.core.questions.get(answer.request)
        if question is None or question.channel.peer is not self:
            return  # its answer is no longer wanted
        channel = question.channel
        match answer:
            case messages.Deny():
                self._denied(question, answer.code, printable(answer.message), now)
            case messages.Elsewhere():
                self._sent_on(channel, answer.port, now)
            case _ if type(answer) is ANSWERS[question.kind]:
                channel.reached()
                if question.kind is not messages.Watch:
                    channel.forget(question)
                if not issubclass(question.kind, ON_EACH_CONNECTION):
                    self.progressed()
                question.answered(answer, now)
            case _:
                raise ProtocolError(f"{self.address} answers {question.kind.kind!r} with {answer.kind!r}")

    def _denied(self, question: PendingQuestion, code: str, text: str, now: float) -> None:
        channel = question.channel
        kind = ERRORS.get(code)
        if kind is not None:
            channel.reached()
            channel.forget(question)
            question.failed(kind(text), now)
            return
        question.refused = True
        if code == HELD_UP:
            channel.held_up(text, now)
        else:
            channel.unreachable(f"{self.address} refused the request: {text}", now)
        if channel.error is not None:
            return
        if code == "unregistered" and self.is_member:
            channel.ask_the_node(now)
            return
        channel.ask_again_later(now)

    def _sent_on(self, channel: ClientChannel, port: int, now: float) -> None:
        """Another process of the node has the channel."""
        if (address := self.elsewhere(port)) is not None:
            self._move(channel, self.core.peer(address, self.node), now)
            return
        channel.unreachable(
            f"{self.address} redirected the request to port {port}, but this redirect cannot be followed", now
        )
        if channel.error is None:
            channel.ask_the_node(now)

    def _move(self, channel: ClientChannel, peer: ClientPeer, now: float) -> None:
        if peer is self:
            return
        self.leave(channel, now)
        channel.on_lost("the channel is requested from another process of the node", now)
        peer.join(channel)
        for question in list(channel.questions.values()):
            peer.ask(question, now)

    def send_back(self, channel: ClientChannel, now: float) -> None:
        """``channel`` is asked for where it was looked for first."""
        self._move(channel, self.core.peer(self.node, self.node), now)

    def lost(self, reason: str, now: float) -> None:
        super().lost(reason, now)
        if self._backoff.lasted(now):
            self.progressed()
        why = f"the connection to {self.address} failed: {reason}"
        for channel in list(self.channels):
            channel.on_lost(why, now)
            channel.unreachable(why, now)
            if channel.error is None and self.is_member:
                channel.ask_the_node(now)
        if self.channels and (failing_s := self._episode.failed(now)) is not None:
            log.warning(
                "%s: %s has not been reached for %.0f s: %s; %d clients of its channels wait; still trying",
                self.core.name, self.address, failing_s, printable(reason), len(self.channels),
            )  # fmt: skip
        self.redial(now)

    def refused(self, error: HandshakeError, now: float) -> None:
        for channel in list(self.channels):
            channel.fail(HandshakeError(f"channel {channel.id!r}: {error}"), now)


class ClientControl(DialedControl):
    """The client's end."""

    role, other_role = b"client", b"receiver"
    purpose = FOR_REQUESTS
    features = messages.TAKES - {messages.GAPS} | {messages.ELSEWHERE}
    up = "%s: connection with %s is up"

    def __init__(self, peer: ClientPeer) -> None:
        super().__init__(peer, peer.address, peer.node)
        self._owner = peer

    def told(self, message: Message, now: float) -> None:
        match message:
            case messages.Ready():
                self._owner.ready(message.channel, now)
            case messages.Ok() | messages.Finished():
                raise ProtocolError(f"{self.peer} sent {message.kind!r}, which is an answer for senders")
            case messages.Answer():
                self._owner.answered(message, now)
            case _:
                raise ProtocolError(
                    f"{self.peer} sent {message.kind!r}, which a receiver does not send to its clients"
                )
