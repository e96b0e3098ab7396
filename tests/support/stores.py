"""Stores whose seams fail when they are told to, and Z-sets that are easy to compare."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa
import pytest

from nebuli.dataflow.zset import weighted
from nebuli.store import Shard, Span, Store
from nebuli.store.backends import backends_at
from nebuli.store.blobs import Blobs
from nebuli.store.errors import FINISHED, Conflict, StoreFailed, Unclear
from nebuli.store.ordering import Change, Ordering
from nebuli.store.store_url import StoreUrl
from tests.support import sizes

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


def fill(ordering: Ordering, key: str, *entries: bytes) -> None:
    """Append entries to a log, one after the other."""
    (head,) = ordering.heads([key]).values()
    for sequence, data in enumerate(entries, head):
        ordering.append([Change(key, sequence, data)])


def found(ordering: Ordering, key: str, after: int = 0) -> list[tuple[int, bytes]]:
    """What a log has."""
    return [(entry.sequence, entry.data) for entry in ordering.scan(key, after)]


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


class HeldPuts:
    """Blobs that are put wait, while `held`, until it is set that they go on."""

    def __init__(self) -> None:
        self.held = False
        self.begun, self.go_on = threading.Event(), threading.Event()

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if name == "put" and self.held:
            self.begun.set()
            assert self.go_on.wait(30)
        return call(*arguments)


class RefusedDeletes:
    """Blobs whose names begin so cannot be deleted; `tried` has all that were to be."""

    def __init__(self, *prefixes: str) -> None:
        self.prefixes = prefixes
        self.tried: list[str] = []

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        if name == "delete":
            self.tried += arguments[1]
            if any(each.startswith(self.prefixes) for each in arguments[1]):
                raise StoreFailed("the store", "deleting", "it is not allowed")
        return call(*arguments)


class DrawnFaults:
    """Calls of one seam that are slow, and appends that fail or whose answer is lost, as it is drawn.

    The looks at the log that follow such an append fail at times, too: it is the same disk. An append, and a look,
    fails twice in a row at most; a shard tries four times.
    """

    def __init__(self, draw: random.Random) -> None:
        self._draw = draw
        self._failed: Counter[str] = Counter()
        self._has_failed = False  # the last call

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        may_fail = name == "append" or (name == "heads" and self._has_failed)
        chances = [0.6, 0.1, 0.15, 0.15] if may_fail and self._failed[name] < 2 else [0.9, 0.1, 0.0, 0.0]
        (fate,) = self._draw.choices(["", "slow", "lost", "unclear"], chances)
        if fate == "slow":
            time.sleep(0.002)
        if fate in ("", "slow"):
            self._failed[name] = 0
            self._has_failed = False
            return call(*arguments)
        self._failed[name] += 1
        self._has_failed = True
        if fate == "unclear":
            with suppress(Conflict):
                call(*arguments)
        raise (
            Unclear("writing", "the disk") if name == "append" else StoreFailed("the store", name, "the disk")
        )


_LIFE = ("open", "hurry", "close", "bell", "unchanged", "lock")


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


class Place(Protocol):
    """Where a store is."""

    def seams(self) -> tuple[Ordering, Blobs]:
        """New ones of the same store."""


@dataclass(frozen=True)
class Here:
    """In a folder of this machine, whose seams fail as it is drawn, if it is."""

    folder: Path
    draw: random.Random | None = None

    def seams(self) -> tuple[Ordering, Blobs]:
        ordering, blobs = backends_at(self.folder)
        if self.draw is None:
            return ordering, blobs
        drawn = [DrawnFaults(random.Random(self.draw.random())) for _ in range(2)]
        return Faulty(ordering, drawn[0]), Faulty(blobs, drawn[1])


@dataclass(frozen=True)
class Away:
    """In a schema of a database, and a bucket of objects."""

    url: StoreUrl

    def seams(self) -> tuple[Ordering, Blobs]:
        return backends_at(self.url)


def place_of(request: pytest.FixtureRequest) -> Place:
    """Here, with a steady disk or one that fails, away, or away by ways that fail now and then."""
    match request.param:
        case "here":
            return Here(request.getfixturevalue("folder"))
        case "failing":
            return Here(request.getfixturevalue("folder"), random.Random(request.node.name))
        case "away":
            return Away(request.getfixturevalue("url"))
    return Away(request.getfixturevalue("unsteady_url"))


_AWAY = pytest.param("away", marks=pytest.mark.processes)
PLACES = ["here", _AWAY] if sizes.ONE_IN == 1 else ["here"]
UNSTEADY = pytest.param("unsteady", marks=[pytest.mark.processes, pytest.mark.long])
ALSO_UNSTEADY = [*PLACES, UNSTEADY] if sizes.ONE_IN == 1 else PLACES
EACH_PLACE = [*ALSO_UNSTEADY, "failing"]
"""Also those whose answers are slow, lost, or lost though the request took effect."""
only_here = pytest.mark.parametrize("place", ["here"], indirect=True)
"""Marks tests that look at files, or at what SQLite does."""


def store_at(place: Place, plan: Plan | None = None) -> Store:
    """A store, whose seams go by a plan if there is one."""
    ordering, blobs = place.seams()
    return Store(ordering, blobs) if plan is None else Store(Faulty(ordering, plan), Faulty(blobs, plan))


def store_with(place: Place, blobs_go: Around) -> Store:
    """A store of which the calls to blobs are made in some way."""
    ordering, blobs = place.seams()
    return Store(ordering, Faulty(blobs, blobs_go))


def blobs_at(place: Place) -> Sequence[str]:
    """The names of the blobs of all its shards and databases, and what is left of unfinished ones."""
    if isinstance(place, Here):
        return files(place.folder)
    ordering, _ = place.seams()
    ordering.open()
    try:
        return sorted(name for key in ordering.keys("") for name in opened_blobs(place).names(key))
    finally:
        ordering.close()


def opened_blobs(place: Place) -> Blobs:
    """The blobs of a store that was made, past that."""
    ordering, blobs = place.seams()
    ordering.open()
    ordering.close()
    return blobs


def faulty_store(folder: Path, plan: Plan) -> Store:
    """A store in a folder whose seams go by a plan."""
    return store_at(Here(folder), plan)


def files(folder: Path) -> Sequence[str]:
    """The blobs in a store's folder, and what is left of unfinished ones."""
    return sorted(path.name for path in (folder / "blobs").rglob("*") if path.is_file())


__all__ = [
    "ALSO_UNSTEADY",
    "EACH_PLACE",
    "FINISHED",
    "PLACES",
    "SCHEMA",
    "UNSTEADY",
    "Away",
    "DrawnFaults",
    "Faulty",
    "HeldPuts",
    "Here",
    "Killed",
    "Place",
    "Plan",
    "RefusedDeletes",
    "blobs_at",
    "by_time",
    "faulty_store",
    "files",
    "fill",
    "found",
    "listened",
    "only_here",
    "opened_blobs",
    "place_of",
    "store_at",
    "store_with",
    "weights",
    "zset",
]
