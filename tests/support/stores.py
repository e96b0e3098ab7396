"""Stores whose seams fail when they are told to, and Z-sets that are easy to compare."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from nebuli.dataflow.zset import weighted
from nebuli.storage import Shard, Span, Store
from nebuli.storage.blobs.blob_files import FileBlobs
from nebuli.storage.errors import FINISHED
from nebuli.storage.ordering.sqlite import SqliteOrdering

SCHEMA = weighted(pa.schema([("n", pa.int64()), ("text", pa.string())]))


def zset(*weights: tuple[int, int], padding: int = 0) -> pa.RecordBatch:
    """Rows by number, with their weights; ``padding`` makes them longer."""
    numbers = [number for number, _ in weights]
    texts = [f"{number}" + "x" * padding for number in numbers]
    return pa.record_batch([numbers, texts, [weight for _, weight in weights]], schema=SCHEMA)


def weights(batches: pa.Table | Iterable[pa.RecordBatch]) -> dict[int, int]:
    """The weights by the rows' numbers, none of them 0. Rows that stand in it several times are added."""
    found: Counter[int] = Counter()
    for batch in batches.to_batches() if isinstance(batches, pa.Table) else batches:
        for number, text, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            assert text.rstrip("x") == str(number)
            found[number] += weight
    return {number: weight for number, weight in found.items() if weight}


async def listened(shard: Shard, first: int, until: int) -> list[Span]:
    """What is heard from ``first`` up to ``until``, or to the shard's end."""
    heard = []
    async with asyncio.timeout(30):
        async for span in shard.listen(first):
            heard.append(span)
            if span.upper >= until:
                break
    assert [each.lower for each in heard] == [first, *(each.upper for each in heard[:-1])]
    return heard


def by_time(heard: Iterable[Span]) -> dict[int, dict[int, int]]:
    """The weights of what was heard, by time."""
    found: dict[int, list[pa.RecordBatch]] = {}
    for span in heard:
        for at, rows in span.updates:
            assert span.lower <= at < span.upper
            found.setdefault(at, []).append(rows)
    return {at: changed for at, rows in sorted(found.items()) if (changed := weights(rows))}


class Killed(BaseException):
    """Nothing happens any more."""


@dataclass
class Plan:
    """What goes wrong at the call ``at`` of the seams, counted from 0 on.

    ``before`` is raised instead of the call, ``after`` once it has happened. After a `Killed` all calls are.
    """

    at: int = -1
    before: Callable[[str], BaseException] | None = None
    after: Callable[[str], BaseException] | None = None
    calls: list[str] = field(default_factory=list)
    is_dead: bool = False

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if self.is_dead:
            raise Killed
        is_meant = len(self.calls) == self.at
        self.calls.append(name)
        if is_meant and self.before is not None:
            raise self._noted(self.before(name))
        result = call(*arguments)
        if is_meant and self.after is not None:
            raise self._noted(self.after(name))
        return result

    def _noted(self, error: BaseException) -> BaseException:
        self.is_dead = isinstance(error, Killed)
        return error


_LIFE = ("open", "close", "bell", "unchanged", "lock")


class Around(Protocol):
    """Says what becomes of a call."""

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any: ...


class Faulty:
    """A seam whose calls go by a plan."""

    def __init__(self, seam: Any, plan: Around) -> None:
        self._seam = seam
        self._plan = plan

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._seam, name)
        if name in _LIFE:
            return call
        return lambda *arguments: self._plan.around(name, call, *arguments)


def faulty_store(folder: Path, plan: Plan) -> Store:
    """A store in a folder whose seams go by a plan."""
    return Store(Faulty(SqliteOrdering(folder), plan), Faulty(FileBlobs(folder / "blobs"), plan))


def files(folder: Path) -> Sequence[str]:
    """The blobs in a store's folder, and what is left of unfinished ones."""
    return sorted(path.name for path in (folder / "blobs").rglob("*") if path.is_file())


__all__ = [
    "FINISHED",
    "SCHEMA",
    "Faulty",
    "Killed",
    "Plan",
    "by_time",
    "faulty_store",
    "files",
    "listened",
    "weights",
    "zset",
]
