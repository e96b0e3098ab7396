"""What a side that takes messages may be unable to do, as it says in its hello, and what it is not sent then."""

from __future__ import annotations

from typing import TYPE_CHECKING

from netchannel.wire import frames, messages

if TYPE_CHECKING:
    from collections.abc import Set as AbstractSet

    from netchannel.wire.frames import Buffer

    from .send_buffer import Record

_REMEDIES = {
    messages.PARTS: f"messages of more than {frames.WHOLE_LIMIT} bytes: send smaller ones",
    messages.NOTES: "notes: send none there",
    messages.CONTEXTS: "dictionaries: send columns without them",
    messages.GAPS: "gaps, and this side may drop messages: give the channel another when_full",
}


def limit_of(message_limit: int, features: AbstractSet[str]) -> int:
    """The largest message, in bytes, that a receiver of ``features`` takes."""
    return message_limit if messages.PARTS in features else min(message_limit, frames.WHOLE_LIMIT)


def lacking(peer: str, feature: str) -> str:
    """What is said of a channel that needs ``feature``."""
    return f"{peer} takes no {_REMEDIES[feature]}"


def missing(record: Record, features: AbstractSet[str]) -> str | None:
    """The feature that ``record`` needs and that is not among ``features``, if there is one."""
    if features >= messages.TAKES:
        return None
    frame = record.whole()
    kind = frames.kind_of(frame[0]) if frame else frames.Kind.PART
    if kind == frames.Kind.GAP:
        return None if messages.GAPS in features else messages.GAPS
    if kind == frames.Kind.PART and messages.PARTS not in features:
        return messages.PARTS
    if messages.NOTES not in features and (record.note or _has_notes(frame[0])):
        return messages.NOTES
    return messages.CONTEXTS if record.context and messages.CONTEXTS not in features else None


def _has_notes(frame: Buffer) -> bool:
    _, _, kind, flags, _, length, *_ = frames.HEADER.unpack_from(frame)
    return bool(length if kind == frames.Kind.PART else flags & frames.NOTES)
