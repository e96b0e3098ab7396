"""Rows of collections in tests, and what adds up from their changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pyarrow as pa

from nebuli.store import Span

SCHEMA = pa.schema([("shop", pa.string()), ("amount", pa.int64())])


def batch(*rows: tuple[str, int]) -> pa.RecordBatch:
    """Rows without weights."""
    return pa.RecordBatch.from_pylist(
        [{"shop": shop, "amount": amount} for shop, amount in rows], schema=SCHEMA
    )


def zset(*rows: tuple[str, int, int]) -> pa.RecordBatch:
    """Rows with weights."""
    schema = SCHEMA.append(pa.field("_weight", pa.int64()))
    return pa.RecordBatch.from_pylist(
        [{"shop": shop, "amount": amount, "_weight": weight} for shop, amount, weight in rows], schema=schema
    )


def counted(table: pa.Table) -> Counter[tuple[Any, ...]]:
    """How often each row is there."""
    return Counter(tuple(row.values()) for row in table.to_pylist())


class Accumulated:
    """What a reader has, when it adds up what it is told: the contents at each time that it has passed."""

    def __init__(self) -> None:
        self.upper = 0
        self.now: Counter[tuple[Any, ...]] = Counter()
        self.spans: list[Span] = []
        self.changes: dict[int, Counter[tuple[Any, ...]]] = {}

    def take(self, span: Span) -> None:
        """One span, which begins where the last has ended."""
        assert not self.spans or span.lower == self.upper, "no gap and no overlap"
        self.spans.append(span)
        self.upper = span.upper
        before = span.lower
        for at, rows in span.updates:
            assert before <= at < span.upper, "times are in their order, and of the span"
            before = at
            for *row, weight in zip(*(column.to_pylist() for column in rows.columns), strict=True):
                self.changes.setdefault(at, Counter())[tuple(row)] += weight
                self.now[tuple(row)] += weight

    def at(self, time: int) -> Counter[tuple[Any, ...]]:
        """The contents at a time."""
        assert time < self.upper
        found: Counter[tuple[Any, ...]] = Counter()
        for at, rows in self.changes.items():
            if at <= time:
                for row, weight in rows.items():
                    found[row] += weight
        return present(found)

    async def follow(self, spans: AsyncIterator[Span], until: int) -> None:
        """Take spans until a time is passed."""
        while self.upper <= until:
            self.take(await anext(spans))


def present(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Without those that are there no times."""
    return Counter({row: weight for row, weight in rows.items() if weight})


def added(changes: Iterable[tuple[int, Counter[tuple[Any, ...]]]], time: int) -> Counter[tuple[Any, ...]]:
    """The contents at a time by a model: all changes up to it, added up."""
    found: Counter[tuple[Any, ...]] = Counter()
    for at, rows in changes:
        if at <= time:
            for row, weight in rows.items():
                found[row] += weight
    return present(found)
