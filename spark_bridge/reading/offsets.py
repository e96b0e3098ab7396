"""Offsets of a streaming query: how far it has read in every channel, as Spark keeps them in its checkpoint.

An offset is ``{key: {"stream": ..., "from": ..., "seq": ..., "holder": ...}}``. ``seq`` is the next number. ``from``
is where the batch that ends there began: a batch that is run again reads the same range, even if the channel's
beginning has moved, and a batch that crosses to the next stream has a mark. The first offset of a query has none.
``holder`` is the same for all offsets of a checkpoint, and differs between checkpoints: it distinguishes a returning
query from another one. ``ended`` stands where all of a stream has been read that will ever be in it: a number that
grows with each run of the query that finds it so, since Spark shows only offsets that are news.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

from spark_bridge.errors import CheckpointReplaced, DataLost, OptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from netchannel import Heads
    from spark_bridge.options import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """The place of a query in one channel. ``stream`` is None until there is one."""

    stream: str | None
    sequence: int
    first: int | None = None
    holder: str = ""
    ended: int = 0

    def unmoved(self) -> Entry:
        """The same place, as the end of a batch that reads nothing here."""
        return replace(self, first=self.sequence)

    def json(self) -> dict[str, Any]:
        """The entry as it goes into the offset: always in this order, since Spark compares texts."""
        shown: dict[str, Any] = {"stream": self.stream}
        if self.first is not None:
            shown["from"] = self.first
        shown["seq"] = self.sequence
        if self.holder:
            shown["holder"] = self.holder
        if self.ended:
            shown["ended"] = int(self.ended)
        return shown


def decode(offset: Mapping[str, Any]) -> dict[str, Entry]:
    """The entries of an offset. Raises CheckpointReplaced for one that another source has written."""
    try:
        return {
            key: Entry(
                each["stream"], each["seq"], each.get("from"), each.get("holder", ""), each.get("ended", 0)
            )
            for key, each in offset.items()
        }
    except (AttributeError, KeyError, TypeError) as error:
        raise foreign(offset, "channels") from error


def foreign(offset: Any, what: str) -> CheckpointReplaced:
    """Return the error for an offset that another source has written, as this one reads ``what``."""
    return CheckpointReplaced(
        f"the query's checkpoint has the offset {json.dumps(offset)[:200]}, which is not one of {what}: "
        f"another source has written it; start the query with a new checkpoint"
    )


def encode(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """The offset of these entries."""
    return {key: entries[key].json() for key in sorted(entries)}


def left_out(entries: Mapping[str, Entry], sources: tuple[Source, ...]) -> list[str]:
    """The keys of channels that the query has read, and that are not among ``sources`` any more.

    Raises DataLost where one of them comes back under another key, which would be read from its beginning: keys have
    endpoints if a channel is looked for at several.
    """
    gone = {key for key, entry in entries.items() if entry.stream is not None}
    gone -= {source.key for source in sources}
    for source in sources:
        names = {source.channel, *(key for key in gone if key.rpartition("@")[0] == source.channel)}
        if source.key not in entries and (before := sorted(names & gone)):
            raise DataLost(
                f"channel {source.channel!r} has the name {before[0]!r} in the query's checkpoint, but the "
                f"name {source.key!r} in this run: the query would read the channel again from its beginning; "
                f"start the query with the same endpoints as before, or with a new checkpoint"
            )
    return sorted(gone)


class Range(NamedTuple):
    """Messages ``[first, until)`` of a stream."""

    source: Source
    stream: str
    first: int
    until: int


def ranges(
    start: Mapping[str, Any], end: Mapping[str, Any], sources: tuple[Source, ...], pieces: int | None = None
) -> list[Range]:
    """Return the ranges of the batch from ``start`` to ``end``, in at least ``pieces`` if it has as many messages.

    Raises DataLost if it has a channel that is not among ``sources``: the query was started with others.
    """
    if start == end:
        return []
    begins, ends, by_key = decode(start), decode(end), {source.key: source for source in sources}
    found = []
    for key, entry in ends.items():
        first = _first(begins.get(key), entry)
        if entry.stream is None or first >= entry.sequence:
            continue
        if key not in by_key:
            raise DataLost(
                f"the query's checkpoint requires messages of {key!r}, but this run reads only the channels "
                f"{', '.join(by_key)}: start the query with all the channels and endpoints that it had"
            )
        found.append(Range(by_key[key], entry.stream, first, entry.sequence))
    return cut(found, pieces or 0)


def _first(begin: Entry | None, end: Entry) -> int:
    if end.first is not None:
        return end.first
    # PySpark 4.1 asks for offsets without the beginning of the batch.
    return begin.sequence if begin is not None and begin.stream in (None, end.stream) else 0


def cut(whole: list[Range], pieces: int) -> list[Range]:
    """The ranges in at least ``pieces`` parts, as equal as messages allow."""
    total = sum(each.until - each.first for each in whole)
    if pieces <= len(whole) or not total:
        return whole
    parts = []
    for each in whole:
        size = each.until - each.first
        count = min(size, -(-pieces * size // total))
        bounds = [each.first + size * number // count for number in range(count + 1)]
        parts += [each._replace(first=a, until=b) for a, b in pairwise(bounds)]
    return parts


def initial(
    key: str, starting: Any, heads: Heads | None, holder: str = "", option: str = "startingOffsets"
) -> Entry:
    """The first entry of a query in the channel ``key``. ``starting`` is the value of ``option`` for it.

    Raises:
        OptionError: the stream has not got there.
        DataLost: it is a number, and there is no stream.
    """
    match starting:
        case "earliest":
            at = None if heads is None else heads.oldest
        case "latest":
            at = None if heads is None else heads.head
        case int():
            if heads is None:
                raise DataLost(
                    f"the option {option!r} gives number {starting} for channel {key!r}, which has no stream yet"
                )
            at = starting
        case {"stream": str(stream), "seq": int(number)} if heads is None or stream != heads.stream:
            return Entry(stream, number, holder=holder, ended=starting.get("ended", 0))
        case {"stream": str(), "seq": int(number)}:
            at = number
        case _:  # beginning, also in the words of an offset of before there was a stream
            at = None if heads is None else 0
    if heads is None or at is None:
        return Entry(None, 0, holder=holder)
    if at > heads.head:
        raise OptionError(
            f"the option {option!r} gives number {at} for channel {key!r}, which has only the messages from "
            f"{heads.oldest} to {heads.head} (excluded): give a number up to {heads.head}, or 'latest'"
        )
    ended = starting.get("ended", 0) if isinstance(starting, dict) else 0
    return Entry(heads.stream, at, holder=holder, ended=ended)
