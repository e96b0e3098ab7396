"""Whether a receiver's channel takes the sender that asks to open it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import NetChannelError, PositionLost, SchemaMismatch, StreamReplaced
from netchannel.values import Position

from .link import log, printable

if TYPE_CHECKING:
    from .inbound import InboundChannel
    from .messages import Open
    from .receiver import ReceiverControl


class Refusal(NamedTuple):
    """Why an open request is denied: a code for the sender's core, a sentence for its owner."""

    code: str
    message: str


def refusal(channel: InboundChannel, session: ReceiverControl, request: Open, now: float) -> Refusal | None:
    """What stands against the open request; None takes it. What no other sender can mend, the consumer is told."""
    if request.codec != channel.codec:
        ours, theirs = channel.codec, request.codec
        text = f"channel {channel.id!r} has the codec {ours!r} here, {theirs!r} at {session.peer}"
        channel.fail(SchemaMismatch(text), now)
        return Refusal("codec", text)
    if request.lossy and channel.explicit:
        text = (
            f"channel {channel.id!r} is acknowledged explicitly, and its sender drops messages (drop_oldest)"
        )
        return Refusal("policy", f"{text}: use one or the other")
    if request.schema is not None:
        try:
            channel.learn(request.schema)
        except SchemaMismatch as error:
            channel.fail(error, now)
            return Refusal("schema", str(error))
    if channel.keeper is not None and channel.stream is None and (text := channel.keeper.against()):
        return Refusal("unread", text)
    if channel.stream is not None and channel.stream != request.stream:
        against = _other_stream(channel, session, request.stream, now)
        if against is not None:
            return against
    return _misplaced(channel, request, now)


def _other_stream(
    channel: InboundChannel, session: ReceiverControl, stream: str, now: float
) -> Refusal | None:
    if channel.session is not None and channel.session is not session:
        return Refusal(
            "held", f"channel {channel.id!r} is held by {channel.holder}, whose stream has not ended"
        )
    if channel.ended is not None:
        place = f"acknowledged up to {channel.acked} of {channel.ended}"
        text = f"channel {channel.id!r}: stream {channel.stream!r} is here to its end, and {place}"
        return Refusal("unread", text)
    untouched = channel.expected == channel.start and not isinstance(channel.resume_from, Position)
    if untouched or channel.fault.accept_new_stream:
        if channel.queue:
            text = f"{len(channel.queue)} messages of stream {channel.stream!r} are still to be read"
            return Refusal("unread", f"channel {channel.id!r}: {text}")
        log.warning(
            "channel %s: stream %s replaces %s at number %s",
            channel.id, printable(stream), printable(channel.stream or ""), channel.expected,
        )  # fmt: skip
        channel.begin_anew()
        return None
    text = (
        f"channel {channel.id!r} was at number {channel.expected or 0} of stream {channel.stream!r}; its sender came "
        f"back as stream {stream!r}, which begins anew: what the old one may not have delivered is lost with it. "
        f"Register the channel again, without resume_from, to take the new stream"
    )
    channel.fail(StreamReplaced(text), now)
    return Refusal("replaced", text)


def _misplaced(channel: InboundChannel, request: Open, now: float) -> Refusal | None:
    expected, oldest, head = channel.expected, request.oldest, request.head
    if expected is None or head is None:
        return None
    place = f"channel {channel.id!r} is to go on at number {expected} of stream {request.stream!r}"
    error: NetChannelError
    if expected > head:
        error = StreamReplaced(f"{place}, which has only got to {head}: that is another stream")
    elif expected < oldest:
        error = PositionLost(f"{place}, whose oldest kept message is {oldest}")
    else:
        return None
    channel.fail(error, now)
    return Refusal("position", str(error))
