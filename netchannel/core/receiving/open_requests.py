"""Requests to open channels: a sender asks, is offered a token, and has the channel once it comes with that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.core.calls.callees import at_port
from netchannel.core.link import Closing
from netchannel.log_texts import printable, refusals
from netchannel.wire import messages

from .admission import Refusal, position_refusal, refusal
from .node_members import MemberControl
from .offers import OFFERS_LIMIT, Offers
from .tombstones import Tombstone

if TYPE_CHECKING:
    from netchannel.core.link import Core
    from netchannel.core.timers import Timer

    from .admission import Available
    from .inbound import InboundChannel
    from .node_members import NodeMembers
    from .offers import Offer
    from .registry import Registry
    from .sessions import ReceiverControl


class OpenRequests:
    """A receiver's answers to senders that ask for channels, and to those that come for them.

    A request is a message of any age, and its contents may be outdated. So asking changes nothing. A
    token that comes back was received by a sender that had asked: the data that came with it is newer than
    the offer.
    """

    def __init__(self, core: Core, registry: Registry, members: NodeMembers, message_limit: int) -> None:
        self._registry = registry
        self._members = members
        self.message_limit = message_limit
        self.offers = Offers(core)
        self._timers = core.timers
        self._waiting: dict[ReceiverControl, dict[str, messages.Open]] = {}  # whose turn it is first
        self._turn: Timer | None = None

    def asked(self, session: ReceiverControl, request: messages.Open, now: float) -> None:
        """A sender asks for a channel. Errors that would end its consumer wait until the sender comes.

        Where many ask at once, offers are made as others have come, one for each session in turn; a session
        without an offer does not wait for others, so that a sender that cannot come only delays itself.
        """
        self._waiting.setdefault(session, {})[request.channel] = request
        self._take_turns(now)

    def left(self, session: ReceiverControl, now: float) -> None:
        """A session is over: nothing it was offered is good, and nothing it asked for is wanted."""
        self._waiting.pop(session, None)
        self.offers.left(session)
        self._take_turns(now)

    def clear(self) -> None:
        """Drop all waiting requests and all offers: no sender is to come any more."""
        self._waiting.clear()
        self.offers.clear()

    def _take_turns(self, now: float) -> None:
        while self._waiting:
            room_at = self.offers.room_at(now)
            waiting = (each for each in self._waiting if room_at <= now or not each.tokens)
            if (session := next(waiting, None)) is None:
                if self._turn is None:
                    self._turn = self._timers.at(room_at, self._on_turn)
                return
            requests = self._waiting.pop(session)
            request = requests.pop(next(iter(requests)))
            if requests:
                self._waiting[session] = requests
            self._answer(session, request, now)

    def _on_turn(self, now: float) -> None:
        self._turn = None
        self._take_turns(now)

    def _answer(self, session: ReceiverControl, request: messages.Open, now: float) -> None:
        channel_id, number = request.channel, request.request
        match self._verdict(session, request):
            case Tombstone(count, reason, text):
                finished = messages.Finished(
                    channel=channel_id, request=number, count=count, reason=reason, message=text
                )
                session.say(finished)
            case MemberControl(port=port) if messages.ELSEWHERE in session.peer_features:
                session.say(messages.Elsewhere(channel=channel_id, request=number, port=port))
            case MemberControl() as member:
                _deny(session, request, Refusal("elsewhere", at_port(f"channel {channel_id!r}", member.port)))
            case Refusal(error=None) as against:
                if request.into is None or against.code == "unregistered":
                    self._registry.services.wait(session, _target(request))
                _deny(session, request, against)
            case _:
                self._offer(session, request, now)

    def _offer(self, session: ReceiverControl, request: messages.Open, now: float) -> None:
        if self.offers.full:
            _deny(
                session,
                request,
                Refusal("limit", f"{OFFERS_LIMIT} channels are being opened there, which is the limit"),
            )
            return
        try:
            token, port = self.offers.make(session, request, self._meant(request), now)
        except OSError as error:
            _deny(session, request, Refusal("ports", f"no port for the data connection: {error}"))
            return
        granted = messages.Ok(
            channel=request.channel,
            request=request.request,
            token=token,
            port=port,
            message_limit=self.message_limit,
        )
        session.say(granted)

    def redeem(self, token: bytes, kept: Available, now: float) -> InboundChannel | Tombstone | Refusal:
        """Return the channel for the sender that comes with ``token`` and its ``kept`` messages.

        The sender has it from now on.

        All is judged again. Only if no other sender has had the channel since the offer, this sender's report
        is newer than the knowledge here, and may end the consumer.
        """
        # Taken before anything is judged: a token is good once, and its place among the offers is free in any case.
        offer = self.offers.take(token)
        self._take_turns(now)
        if offer is None or offer.session.closing is not Closing.OPEN:
            return Refusal("token", "the token is invalid, or no longer valid")
        verdict = self._verdict(offer.session, offer.request)
        if isinstance(verdict, Tombstone):
            return verdict
        channel = self._meant(offer.request)
        if isinstance(verdict, MemberControl) or not offer.holds_for(channel):
            return Refusal(
                "token", "the token is no longer valid: another sender has taken the channel since"
            )
        outcome = self._give(channel, offer, kept, now) if verdict is None else verdict
        if channel is not None and isinstance(outcome, Refusal) and outcome.error is not None:
            channel.fail(outcome.error, now)
        return outcome

    def _give(
        self, channel: InboundChannel | None, offer: Offer, kept: Available, now: float
    ) -> InboundChannel | Refusal:
        request = offer.request
        if channel is None:
            begun = self._registry.staged[_target(request)].begin(request, kept, now)
            if isinstance(begun, Refusal):
                return begun
            channel = begun
        against = position_refusal(channel, request.stream, kept)
        if against is None:
            channel.give(offer.session, request.stream, lossy=request.lossy)
        return against or channel

    def _meant(self, request: messages.Open) -> InboundChannel | None:
        """Return the requested channel, if it is there, or that of an attempt in progress."""
        if request.into is None:
            return self._registry.channels.get(request.channel)
        staged = self._registry.staged.get(request.into)
        return None if staged is None else staged.attempt(request)

    def _verdict(
        self, session: ReceiverControl, request: messages.Open
    ) -> Tombstone | MemberControl | Refusal | None:
        """Return the objection to the sender, if there is one; or the other process that has the channel."""
        registry, target = self._registry, _target(request)
        # First of all: a stream that is over stays so, also where its channel's id is registered again for another.
        if (grave := registry.tombstones.find(request.channel, request.stream)) is not None:
            return grave
        channel = registry.channels.get(target)
        if channel is None:
            return self._members.holder(target) or self._absent(request, target)
        staged = registry.staged.get(target)
        if request.into is None:
            if staged is None:
                return refusal(channel, session, request)
            text = f"channel {target!r} accepts only groups: use register_attempt(...)"
            return Refusal("policy", text)
        if staged is None:
            text = f"channel {target!r} does not accept groups: register it there with register_staged_channel(...)"
            return Refusal("policy", text)
        against, attempt = staged.verdict(request), staged.attempt(request)
        return refusal(attempt, session, request) if against is None and attempt is not None else against

    def _absent(self, request: messages.Open, target: str) -> Refusal:
        """Return the answer if ``target`` is not registered: an attempt that is over is known all the same."""
        over = self._registry.services.ledgers.get(target)
        if over is not None and request.application is not None and request.epoch is not None:
            regressed = over.regressed(request.application, request.epoch)
            if regressed is not None:
                return Refusal("regressed", regressed)
        text = f"channel {target!r} is not registered there"
        if over is not None:
            text = f"{text} any more: its last stream has ended; register it there again for a new stream"
        if (
            service := self._registry.services.offered.get(target)
        ) is not None and service.broken is not None:
            text = f"{text} any more: {service.broken}"
        return Refusal("unregistered", text)


def _target(request: messages.Open) -> str:
    """The channel that is asked for; of an attempt, the one that it is for."""
    return request.channel if request.into is None else request.into


def _deny(session: ReceiverControl, request: messages.Open, refused: Refusal) -> None:
    text = refused.message[:1000]
    refusals.info("%s is refused: %s", printable(session.peer), printable(text))
    session.say(
        messages.Deny(channel=request.channel, request=request.request, code=refused.code, message=text)
    )
