"""How far the next batch of a streaming query goes, in every channel. Pure: what is there is given."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from netchannel import Position

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from netchannel import Heads, Located

    from .offsets import Entry


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that a batch may have; None: no limit."""

    rows: int | None = None
    bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Waiting:
    """Messages ``[first, heads.head)`` that a channel has for the next batch. ``lost`` describes lost ones."""

    heads: Heads
    first: int
    lost: str | None = None


def waiting(entry: Entry, heads: Heads, *, kept: bool = False) -> Waiting | None:
    """Return the messages of a channel beyond ``entry``; None if there are none. An end that is news counts.

    Where the query has read nothing yet, its first stream may be without its beginning if it is to read what is
    ``kept``.
    """
    if entry.stream is None:
        return _unless_empty(entry, Waiting(heads, heads.oldest, None if kept else freed(heads)))
    if entry.ended and heads.stream != entry.stream:
        lost = None if heads.oldest == 0 else f"messages 0 to {heads.oldest - 1}"
        return _unless_empty(entry, Waiting(heads, heads.oldest, lost))
    if heads.stream != entry.stream:
        lost = (
            f"the query has read stream {entry.stream} up to {entry.sequence}, but the server now has stream "
            f"{heads.stream}, and never reported the end of stream {entry.stream}"
        )
        return Waiting(heads, heads.oldest, lost)
    if entry.sequence < heads.oldest:
        begins = entry.first is None and entry.sequence == 0
        lost = (
            freed(heads) if begins else f"messages {entry.sequence} to {heads.oldest - 1} of {entry.stream}"
        )
        return Waiting(heads, heads.oldest, lost)
    if entry.sequence > heads.head:
        return Waiting(
            heads,
            heads.head,
            f"the query has read stream {entry.stream} up to {entry.sequence}, but the server has this stream "
            f"only up to {heads.head}",
        )
    return _unless_empty(entry, Waiting(heads, entry.sequence))


def freed(heads: Heads) -> str | None:
    """Describe the missing messages if a stream is to be read from its beginning; None if it is complete."""
    if heads.oldest == 0:
        return None
    return (
        f"messages 0 to {heads.oldest - 1} of {heads.stream} were freed before this query read them, because "
        "all consumers known to the server had acknowledged them. To prevent this, name this query's consumer in the "
        "server's RetainPolicy(consumers=...). To read without them, give startingOffsets=earliest, which begins with "
        f"message {heads.oldest}, the oldest message kept"
    )


def _unless_empty(entry: Entry, found: Waiting) -> Waiting | None:
    news = found.heads.head > found.first or (found.heads.ended and not entry.ended)
    other = entry.stream is not None and entry.stream != found.heads.stream
    return found if news or found.lost or other else None


def failed(entry: Entry, heads: Heads) -> str | None:
    """Return the error with which a producer has failed, if all of its stream has been read."""
    if heads.failure is None or (entry.stream, entry.sequence) != (heads.stream, heads.head):
        return None
    return f"its producer failed after message {heads.head}: {heads.failure}; all earlier messages were read"


def advance(
    start: Mapping[str, Entry],
    found: Mapping[str, Waiting],
    limits: Limits,
    locate: Callable[[str, Position, Limits], Located],
) -> dict[str, Entry]:
    """The end of the batch that begins at ``start``: as far as ``limits`` allow, a message at least.

    Every channel with something gets a part of the limit, by how many messages it has; what is too large for the
    limit goes alone. ``locate(key, first, limits)`` returns how far a limit goes in a channel.
    """
    ends = {key: entry.unmoved() for key, entry in start.items()}
    keys = sorted(found)
    if keys:
        turn = sum(entry.sequence for entry in start.values()) % len(keys)
        keys = (
            keys[turn:] + keys[:turn]
        )  # so that a channel whose messages are large does not always go first
    left, messages = limits, sum(_size(found[key]) for key in keys)
    for key in keys:
        here, size = found[key], _size(found[key])
        until = here.heads.head
        if size and (limits.rows is not None or limits.bytes is not None):
            if _spent(left):
                continue
            part = locate(key, Position(here.heads.stream, here.first), _part(left, size, messages))
            until = min(until, part.until)
            left = _less(left, part)
        messages -= size
        ended = int(here.heads.ended and until == here.heads.head)
        ends[key] = replace(
            start[key], stream=here.heads.stream, sequence=until, first=here.first, ended=ended
        )
    return ends


def _size(here: Waiting) -> int:
    return max(0, here.heads.head - here.first)


def _spent(left: Limits) -> bool:
    return (left.rows is not None and left.rows <= 0) or (left.bytes is not None and left.bytes <= 0)


def _part(left: Limits, size: int, messages: int) -> Limits:
    return Limits(_share(left.rows, size, messages), _share(left.bytes, size, messages))


def _share(limit: int | None, size: int, messages: int) -> int | None:
    return None if limit is None else max(1, limit * size // messages)


def _less(left: Limits, part: Located) -> Limits:
    return Limits(
        None if left.rows is None else left.rows - part.rows,
        None if left.bytes is None else left.bytes - part.bytes,
    )
