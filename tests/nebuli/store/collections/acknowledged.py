"""A model of a collection that only knows what was acknowledged; and what readers saw, compared with it."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from tests.nebuli.store.collections.rows import Accumulated, present

Row = tuple[str, int]


class Violation(AssertionError):
    """A promise was broken."""


@dataclass
class Change:
    """Rows that somebody has asked to be added, all at one time from ``lowest`` to ``highest``; never, if that is inf.

    Its ``mark`` is a row that no other change adds or takes back.
    """

    rows: Counter[Row]
    mark: Row
    lowest: float = 0
    highest: float = math.inf

    def happened(self, at: int) -> None:
        """It was acknowledged, or seen to happen, at a time."""
        self.narrow(at, at)

    def has_not_happened(self) -> None:
        """It was refused."""
        self.narrow(math.inf, math.inf)

    def narrow(self, lowest: float, highest: float) -> None:
        """It was there or not, at some time. Raises Violation."""
        self.lowest, self.highest = max(self.lowest, lowest), min(self.highest, highest)
        if self.lowest > self.highest:
            raise Violation(f"{self.mark} came from {self.lowest} on, and was there at {self.highest}")


@dataclass
class Model:
    """The changes of a collection, and what was ``seen`` of it, by whom."""

    changes: list[Change] = field(default_factory=list)
    seen: list[tuple[str, Accumulated]] = field(default_factory=list)
    acknowledged: int = 0

    def asked(self, rows: Counter[Row], mark: Row) -> Change:
        """A change of which nothing is known yet."""
        self.changes.append(Change(rows, mark))
        return self.changes[-1]

    def happened(self, change: Change, at: int) -> None:
        """It was acknowledged: who asks now for the last time has to get this one, or a later one."""
        change.happened(at)
        self.acknowledged = max(self.acknowledged, at)

    def check(self) -> int:
        """Compare all that was seen with the model, at every time; how many times that were. Raises Violation."""
        for who, reader in self.seen:
            self._place(who, reader)
        return sum(self._compare(who, reader) for who, reader in self.seen)

    def _place(self, who: str, reader: Accumulated) -> None:
        start = reader.spans[0].lower
        times = {row: at for at, rows in sorted(reader.changes.items()) for row in rows}
        for each in self.changes:
            at = times.get(each.mark)
            try:
                if at is None:
                    each.narrow(reader.upper, math.inf)
                else:
                    each.narrow(0 if at == start else at, at)
            except Violation as error:
                error.add_note(f"as {who} saw it from {start} up to {reader.upper}")
                raise

    def _compare(self, who: str, reader: Accumulated) -> int:
        start = reader.spans[0].lower
        expected: Counter[Row] = Counter()
        found: Counter[Row] = Counter()
        coming = sorted(
            (each for each in self.changes if each.highest < math.inf), key=lambda each: each.highest
        )
        place = 0
        times = {int(each.highest) for each in coming} | {*reader.changes}
        for at in sorted({start} | {each for each in times if start < each < reader.upper}):
            while place < len(coming) and coming[place].highest <= at:
                _add(expected, coming[place].rows)
                place += 1
            _add(found, reader.changes.get(at, Counter()))
            if present(found) != present(expected):
                raise Violation(
                    f"{who}, who reads from {start} on, sees at {at} {_less(found, expected)}, and does not see "
                    f"{_less(expected, found)}"
                )
        return reader.upper - start


def _add(to: Counter[Row], rows: Counter[Row]) -> None:
    for row, weight in rows.items():
        to[row] += weight


def _less(rows: Counter[Row], others: Counter[Row]) -> dict[Row, int]:
    return {row: weight - others[row] for row, weight in rows.items() if weight > others[row]}
