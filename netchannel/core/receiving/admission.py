"""Decides if a receiver's channel accepts a sender that asks for it.

An answer changes nothing: an `open` may be of any age, its sender long gone or elsewhere. Only a sender that
comes with the token of its answer has proved that it is there, and is then judged again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from netchannel.errors import NetChannelError, PositionLost, SchemaMismatch, StreamReplaced
from netchannel.values import Position

if TYPE_CHECKING:
    from netchannel.wire import messages

    from .inbound import InboundChannel
    from .roles import Session


class Refusal(NamedTuple):
    """Why a sender is not taken: a code for its core, a sentence for its owner.

    ``error`` ends the consumer's channel, if no other sender can fix it; but only once the
    sender has shown that it is there.
    """

    code: str
    message: str
    error: NetChannelError | None = None


class Available(NamedTuple):
    """The messages that a sender has when it comes: from its oldest message to its next one.

    None if it starts anywhere.
    """

    oldest: int
    head: int | None


def refusal(
    channel: InboundChannel, session: Session[InboundChannel], request: messages.Open
) -> Refusal | None:
    """Return the objection to the sender; None accepts it. A connected sender is not disturbed by another one."""
    rival = channel.session is not None and channel.session.line != session.line
    if request.codec != channel.codec:
        ours, theirs = channel.codec, request.codec
        text = f"channel {channel.id!r} has the codec {ours!r} here, but {theirs!r} at {session.peer}"
        return Refusal("codec", text, None if rival else SchemaMismatch(text))
    if request.lossy and channel.explicit:
        text = (
            f"channel {channel.id!r} is acknowledged explicitly, but its sender drops messages (drop_oldest)"
        )
        return Refusal("policy", f"{text}: remove ack='explicit' or drop_oldest")
    if rival and (against := _rivalry(channel, request)) is not None:
        return against
    if channel.retainer is not None and channel.stream is None and (text := channel.retainer.against()):
        return Refusal("unread", text)
    if channel.stream is not None and channel.stream != request.stream:
        return _other_stream(channel, request.stream)
    return None


def _rivalry(channel: InboundChannel, request: messages.Open) -> Refusal | None:
    """Return the objection to a sender if another, connected one has had the channel last."""
    if request.schema is not None:
        try:
            channel.decoder.compare(request.schema)
        except SchemaMismatch as error:
            return Refusal("schema", str(error))
    if channel.stream == request.stream and channel.link is None:
        return (
            None  # it has left the stream to a successor, or lost its connection: the first to come continues
        )
    return Refusal(
        "held", f"channel {channel.id!r} is in use by {channel.holder}, whose stream has not ended"
    )


def _other_stream(channel: InboundChannel, stream: str) -> Refusal | None:
    if channel.ended is not None:
        place = f"after {channel.ended} messages, {channel.acked} of which are acknowledged"
        text = f"channel {channel.id!r}: stream {channel.stream!r} has ended here, {place}"
        return Refusal("unread", text)
    untouched = channel.expected == channel.start and not isinstance(channel.resume_from, Position)
    if untouched or channel.fault.accept_new_stream:
        if channel.queue:
            text = f"{len(channel.queue)} messages of stream {channel.stream!r} are still to be read"
            return Refusal("unread", f"channel {channel.id!r}: {text}")
        if channel.retainer is not None and (text := channel.retainer.against()):
            return Refusal("unread", text)
        return None
    how = "without resume_from" if channel.retainer is None else "with FaultPolicy(accept_new_stream=True)"
    text = (
        f"channel {channel.id!r} was at number {channel.expected or 0} of stream {channel.stream!r}; its "
        f"sender now has a new stream {stream!r}: messages that the old stream had not delivered are "
        f"lost. Register the channel again, {how}, to accept the new stream"
    )
    return Refusal("replaced", text, StreamReplaced(text))


def position_refusal(channel: InboundChannel, stream: str, kept: Available) -> Refusal | None:
    """Return the objection to a sender's available messages, if the channel is to continue ``stream``."""
    expected = channel.expected_of(stream)
    if expected is None or kept.head is None:
        return None
    place = f"channel {channel.id!r} has to continue at number {expected} of stream {stream!r}"
    error: NetChannelError
    if expected > kept.head:
        error = StreamReplaced(
            f"{place}, but the sender's stream has only reached number {kept.head}, so it is another stream"
        )
    elif expected < kept.oldest:
        error = PositionLost(f"{place}, but the sender's oldest kept message is {kept.oldest}")
    else:
        return None
    return Refusal("position", str(error), error)
