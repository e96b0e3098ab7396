"""Changes to a shard: each decides by the shard's state what the next entry is, or that there need not be one.

None does I/O. `decide` is asked again with a newer state whenever another entry was first.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from nebuli.store.errors import (
    FINISHED,
    SchemaMismatch,
    ShardFinished,
    ShardUnknown,
    SinceMismatch,
    Unclear,
    UpperMismatch,
)
from nebuli.store.shards.shard_state import Appended, Hold, Part, Setting, ShardState, packed_change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa


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
            raise SchemaMismatch(self.shard, state.schema, self.schema, f"it was created with keeps={kept!r}")
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
                f"its upper is {state.upper} now, after more appends than are remembered",
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
