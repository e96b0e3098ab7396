"""The state of a shard at an entry of its log: a value, made from the one before and the entry. Pure.

An entry is a MessagePack map. One that has ``state`` is a shard's whole state, which the first is and which compaction
writes, so that all before it can be forgotten; any other is a change: an append, holds, or both.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

import msgpack
import pyarrow as pa

from nebuli.store.errors import (
    FINISHED,
    Damaged,
    SchemaMismatch,
    ShardFinished,
    ShardUnknown,
    SinceMismatch,
    Unclear,
    UpperMismatch,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


RECENT = 256
"""Appends whose ids are remembered, so that one which is repeated is known."""


@dataclass(frozen=True, slots=True)
class Part:
    """Updates of times from ``lower`` up to but not including ``upper``; their bytes are in ``inline`` or in a blob.

    ``number`` is the sequence of the entry that it came with. ``consolidated`` is one with a single time and every row
    once. All rows are of the time ``at``, regardless of the bytes, if that is set.
    """

    number: int
    lower: int
    upper: int
    rows: int
    size: int
    checksum: int
    inline: bytes | None
    blob: str | None
    consolidated: bool
    at: int | None = None

    def pack(self) -> list[Any]:
        """The part as it is in an entry."""
        return [
            self.number, self.lower, _packed_time(self.upper), self.rows, self.size, self.checksum, self.inline,
            self.blob, self.consolidated, self.at,
        ]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Hold:
    """A hold: its owner still reads at ``time``; until ``expires``, seconds since 1970, if that is set."""

    time: int
    expires: float | None


@dataclass(frozen=True, slots=True)
class Appended:
    """An append that was not long ago."""

    id: bytes
    lower: int
    upper: int


@dataclass(frozen=True, slots=True)
class Setting:
    """Holds that are set, and those that are let go."""

    held: Mapping[str, Hold]
    released: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class ShardState:
    """A shard after the entry ``sequence``.

    ``parts`` are in the order of their times. ``fence``: a blob that was begun by a lower entry, and is of no part,
    will never be. ``compacted``: the last entry that was a whole state. ``dropped``: it was, and is not any more.
    """

    schema: pa.Schema
    keeps_contents: bool
    sequence: int = 0
    since: int = 0
    upper: int = 0
    parts: tuple[Part, ...] = ()
    holds: Mapping[str, Hold] | None = None
    recent: Mapping[bytes, Appended] = field(default_factory=dict)
    fence: int = 0
    compacted: int = 0
    dropped: bool = False

    # -- what is asked

    @property
    def held(self) -> Mapping[str, Hold]:
        """The holds, by their names."""
        return self.holds or {}

    def appended(self, id_: bytes) -> bool:
        """True if the append has happened, as far as is remembered."""
        return id_ in self.recent

    def remembers(self, lower: int) -> bool:
        """True if an append from ``lower`` on would be known, had it happened."""
        return len(self.recent) < RECENT or next(iter(self.recent.values())).lower <= lower

    def overlapping(self, first: int, until: int) -> list[Part]:
        """The parts that may have rows of these times."""
        return [each for each in self.parts if each.lower < until and first < each.upper]

    def alive(self, part: Part) -> bool:
        """True if it is still of use."""
        return self.keeps_contents or part.upper > self.since

    # -- what follows

    def after(self, sequence: int, data: bytes) -> ShardState:
        """The state after the next entry. Raises Damaged."""
        try:
            entry = msgpack.unpackb(data)
            if "state" in entry:
                return unpacked(sequence, entry["state"])
            return self._changed(sequence, entry)
        except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
            raise Damaged(f"entry {sequence} is not an entry of a shard: {error!r}") from error

    def _changed(self, sequence: int, entry: dict[str, Any]) -> ShardState:
        changed: dict[str, Any] = {"sequence": sequence}
        if "append" in entry:
            id_, lower, upper = entry["append"]
            recent = dict(self.recent)
            recent[id_] = appended = Appended(id_, lower, _time(upper))
            while len(recent) > RECENT:
                del recent[next(iter(recent))]
            changed |= {"upper": appended.upper, "recent": recent}
        if "part" in entry:
            changed["parts"] = (*self.parts, _part(entry["part"]))
        if "holds" in entry:
            holds = dict(self.held)
            holds |= {name: Hold(*each) for name, each in entry["holds"].items()}
            for name in entry["released"]:
                holds.pop(name, None)
            lowest = min((each.time for each in holds.values()), default=self.since)
            changed |= {"holds": holds, "since": max(self.since, lowest)}
        return replace(self, **changed)

    def pack(self) -> bytes:
        """The whole of it, as an entry."""
        whole = {
            "schema": self.schema.serialize().to_pybytes(),
            "keeps_contents": self.keeps_contents,
            "since": self.since,
            "upper": _packed_time(self.upper),
            "parts": [each.pack() for each in self.parts],
            "holds": {name: [each.time, each.expires] for name, each in self.held.items()},
            "recent": [[each.id, each.lower, _packed_time(each.upper)] for each in self.recent.values()],
            "fence": self.fence,
            "dropped": self.dropped,
        }
        packed: bytes = msgpack.packb({"state": whole})
        return packed


def unpacked(sequence: int, whole: dict[str, Any]) -> ShardState:
    """The state that was packed into the entry."""
    return ShardState(
        schema=pa.ipc.read_schema(pa.py_buffer(whole["schema"])),
        keeps_contents=whole["keeps_contents"],
        sequence=sequence,
        since=whole["since"],
        upper=_time(whole["upper"]),
        parts=tuple(map(_part, whole["parts"])),
        holds={name: Hold(*each) for name, each in whole["holds"].items()},
        recent={id_: Appended(id_, lower, _time(upper)) for id_, lower, upper in whole["recent"]},
        fence=whole["fence"],
        dropped=whole.get("dropped", False),
        compacted=sequence,
    )


def unpacked_first(shard: str, sequence: int, data: bytes) -> ShardState:
    """The state in the first entry of a log that is still there. Raises Damaged."""
    try:
        return unpacked(sequence, msgpack.unpackb(data)["state"])
    except (ValueError, TypeError, KeyError, msgpack.exceptions.UnpackException) as error:
        raise Damaged(
            f"the log of shard {shard} begins with entry {sequence}, which is not a complete state ({error!r}): "
            f"restore the store's folder from a copy"
        ) from error


def packed_change(appended: Appended | None, part: Part | None, setting: Setting | None) -> bytes:
    """Return an entry with a change."""
    entry: dict[str, Any] = {}
    if appended is not None:
        entry["append"] = [appended.id, appended.lower, _packed_time(appended.upper)]
    if part is not None:
        entry["part"] = part.pack()
    if setting is not None:
        entry["holds"] = {name: [each.time, each.expires] for name, each in setting.held.items()}
        entry["released"] = list(setting.released)
    packed: bytes = msgpack.packb(entry)
    return packed


def _part(packed: Sequence[Any]) -> Part:
    number, lower, upper, *rest = packed
    return Part(number, lower, _time(upper), *rest)


def _time(packed: int | None) -> int:
    return FINISHED if packed is None else packed


def _packed_time(time: int) -> int | None:
    """A finished shard's upper is beyond 64 bits."""
    return None if time == FINISHED else time


class Fenced(Exception):
    """A blob was begun before the shard's fence: it may be gone, and has to be written again."""


class Superseded(Exception):
    """Another compaction was first."""


class Decision(Protocol):
    """A change to a shard."""

    @property
    def shard(self) -> str:
        """The shard's name."""

    def decide(self, state: ShardState | None) -> bytes | None:
        """The next entry; None if all is as it should be. Raises StorageError if it cannot be done."""

    def again(self) -> Decision:
        """The same, of which it is not known whether it has happened."""


@dataclass(frozen=True, slots=True)
class Create:
    """Make the shard, if it is not there. Raises SchemaMismatch for one that is another.

    It begins with the rows of ``first``, if there are any, and is written below ``upper``.
    """

    shard: str
    schema: pa.Schema
    keeps_contents: bool
    first: Payload | None = None
    upper: int = 0
    holds: Mapping[str, int] = field(default_factory=dict)

    def decide(self, state: ShardState | None) -> bytes | None:
        """A whole state."""
        if state is None:
            parts = () if self.first is None else (self.first.part(1, 0, self.upper),)
            holds = {name: Hold(time, None) for name, time in self.holds.items()}
            state = ShardState(self.schema, self.keeps_contents, upper=self.upper, parts=parts, holds=holds)
            return state.pack()
        if state.schema != self.schema:
            raise SchemaMismatch(self.shard, state.schema, self.schema)
        if state.keeps_contents != self.keeps_contents:
            kept = "contents" if state.keeps_contents else "updates"
            raise SchemaMismatch(
                self.shard, state.schema, self.schema, f"the shard was created with keeps={kept!r}"
            )
        return None

    def again(self) -> Create:
        """Return the same change for another try: it has no state."""
        return self


@dataclass(frozen=True, slots=True)
class Drop:
    """Have the shard be no more; it does not matter whether it was."""

    shard: str

    def decide(self, state: ShardState | None) -> bytes | None:
        """Return an empty state, by which all that follow the shard learn of it."""
        if state is None:
            return None
        gone = replace(state, parts=(), holds={}, recent={}, fence=state.sequence + 1, dropped=True)
        return gone.pack()

    def again(self) -> Drop:
        """Return the same change for another try: it has no state."""
        return self


@dataclass(frozen=True, slots=True)
class Payload:
    """The bytes of updates, here or in a blob begun after the entry ``born``; all ``at`` a time, if it is set."""

    rows: int
    size: int
    checksum: int
    inline: bytes | None
    blob: str | None
    born: int
    consolidated: bool = False
    at: int | None = None

    def is_fenced(self, state: ShardState) -> bool:
        """True if its blob may have been deleted by a sweep."""
        return self.blob is not None and self.born < state.fence

    def part(self, number: int, lower: int, upper: int) -> Part:
        """The payload as a part that comes with the entry ``number``."""
        return Part(
            number,
            lower,
            upper,
            self.rows,
            self.size,
            self.checksum,
            self.inline,
            self.blob,
            self.consolidated,
            self.at,
        )


@dataclass(frozen=True, slots=True)
class AppendPart:
    """Move the upper from ``expected`` to ``upper``, with or without rows between them, and holds with it."""

    shard: str
    id: bytes
    expected: int
    upper: int
    payload: Payload | None
    holds: Mapping[str, int]
    may_have_happened: bool

    def decide(self, state: ShardState | None) -> bytes | None:
        """The next entry; None if it is this very append that was first."""
        if state is None:
            raise ShardUnknown(self.shard)
        if state.appended(self.id):
            return None
        if state.upper != self.expected:
            self._lost(state)
        if state.upper == FINISHED:
            raise ShardFinished(self.shard, self.expected)
        part = None
        if self.payload is not None:
            if self.payload.is_fenced(state):
                raise Fenced
            part = self.payload.part(state.sequence + 1, self.expected, self.upper)
        setting = None
        if self.holds:
            setting = _setting(self.shard, state, {name: Hold(at, None) for name, at in self.holds.items()})
        return packed_change(Appended(self.id, self.expected, self.upper), part, setting)

    def again(self) -> AppendPart:
        """The same append, whose id may be in the log."""
        return replace(self, may_have_happened=True)

    def _lost(self, state: ShardState) -> None:
        if self.may_have_happened and state.upper > self.expected and not state.remembers(self.expected):
            raise Unclear(
                f"an append to shard {self.shard} at {self.expected}",
                f"the shard's upper is now {state.upper}, and its state only records later appends",
                self.id,
            )
        if state.upper == FINISHED:
            raise ShardFinished(self.shard, self.expected)
        raise UpperMismatch(self.shard, self.expected, state.upper)


@dataclass(frozen=True, slots=True)
class SetHolds:
    """Set holds and let others go; the since follows the lowest. Raises SinceMismatch."""

    shard: str
    held: Mapping[str, Hold]
    released: Sequence[str] = ()

    def decide(self, state: ShardState | None) -> bytes | None:
        """Holds that have expired go, too."""
        if state is None:
            raise ShardUnknown(self.shard)
        setting = _setting(self.shard, state, self.held, self.released)
        if not setting.released and all(state.held.get(name) == each for name, each in setting.held.items()):
            return None
        return packed_change(None, None, setting)

    def again(self) -> SetHolds:
        """Return the same change for another try: it has no state."""
        return self


@dataclass(frozen=True, slots=True)
class Compact:
    """Put ``payload`` in the place of the parts with these numbers, and start the log over. Raises Superseded.

    Blobs begun by the entry ``started`` that belong to no part yet have to be written again.
    """

    shard: str
    started: int
    numbers: Sequence[int]
    payload: Payload | None

    def decide(self, state: ShardState | None) -> bytes | None:
        """A whole state."""
        if state is None or (self.payload is not None and self.payload.is_fenced(state)):
            raise Superseded
        numbers = [each.number for each in state.parts]
        replaced = set(self.numbers)
        places = [place for place, number in enumerate(numbers) if number in replaced]
        if len(places) != len(replaced):
            raise Superseded
        parts = [each for each in state.parts if each.number not in replaced]
        if self.payload is not None and places:
            lower, upper = state.parts[places[0]].lower, state.parts[places[-1]].upper
            parts.insert(places[0], self.payload.part(state.sequence + 1, lower, upper))
        gone = _expired(state)
        setting = Setting({}, gone)
        state = state.after(state.sequence + 1, packed_change(None, None, setting)) if gone else state
        alive = tuple(each for each in parts if state.alive(each))
        return replace(state, parts=alive, fence=max(state.fence, self.started + 1)).pack()

    def again(self) -> Compact:
        """Return the same change for another try: it has no state."""
        return self


def _setting(
    shard: str, state: ShardState, held: Mapping[str, Hold], released: Sequence[str] = ()
) -> Setting:
    for hold in held.values():
        if hold.time < state.since:
            raise SinceMismatch(shard, hold.time, state.since)
    gone = [name for name in (*released, *_expired(state)) if name in state.held and name not in held]
    return Setting(held, gone)


def _expired(state: ShardState) -> list[str]:
    now = time.time()
    return [name for name, each in state.held.items() if each.expires is not None and each.expires < now]
