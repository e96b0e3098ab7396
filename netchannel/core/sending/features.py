"""Features that a side that takes messages may lack, by its hello, and the messages that it is then not sent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.wire import frames, messages

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from netchannel.wire.frames import Buffer

    from .send_buffer import Record

_REMEDIES = {
    messages.PARTS: f"messages of more than {frames.WHOLE_LIMIT} bytes: send smaller ones",
    messages.NOTES: "notes: send messages without notes",
    messages.CONTEXTS: "dictionaries: send columns without dictionaries",
    messages.GAPS: "gaps, and this side may drop messages: give the channel another when_full",
}


def limit_of(message_limit: int, features: AbstractSet[str]) -> int:
    """The largest message, in bytes, that a receiver of ``features`` takes."""
    return message_limit if messages.PARTS in features else min(message_limit, frames.WHOLE_LIMIT)


def describe_missing(peer: str, feature: str) -> str:
    """Return the message about a channel that needs ``feature``."""
    return f"{peer} does not accept {_REMEDIES[feature]}"


def missing_feature(record: Record, features: AbstractSet[str]) -> str | None:
    """The feature that ``record`` needs and that is not among ``features``, if there is one."""
    if record.gap:
        return None if messages.GAPS in features else messages.GAPS
    if record.context and messages.CONTEXTS not in features:
        return messages.CONTEXTS
    # Messages on disk, and packed ones, are in the form that goes on the wire.
    head = record.buffers[0] if record.buffers else None
    in_pieces = (
        record.largest > frames.WHOLE_LIMIT if head is None else frames.kind_of(head) == frames.Kind.PART
    )
    if in_pieces and messages.PARTS not in features:
        return messages.PARTS
    noted = bool(record.note) if head is None else _has_notes(head)
    return messages.NOTES if noted and messages.NOTES not in features else None


ALL = messages.TAKES - {messages.GAPS}
"""The features that all messages need together: a gap is not a message."""


def _has_notes(frame: Buffer) -> bool:
    _, _, kind, flags, _, length, *_ = frames.HEADER.unpack_from(frame)
    return bool(length if kind == frames.Kind.PART else flags & frames.NOTES)
