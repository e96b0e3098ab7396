"""A store whose seams fail at random: some appends are not known to have happened."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from random import Random
from typing import Any

from nebuli.store import Store
from nebuli.store.blobs.blob_files import FileBlobs
from nebuli.store.errors import StoreFailed, Unclear
from nebuli.store.ordering import Ordering
from nebuli.store.ordering.sqlite import SqliteOrdering
from tests.support.stores import Faulty

_OUTAGE_CALLS = 5
"""After so many calls that fail a process has given up to learn what has become of its append."""
FAULTS = ("unclear, done", "outage, not done", "unclear, not done", "outage, done")
"""One after the other, from any of them on."""


class Outages:
    """One in ``one_in`` appends to the ordering is unclear, done or not; behind some nothing goes for a while."""

    def __init__(self, seed: int, one_in: int, report: Callable[[str], None]) -> None:
        self._random = Random(seed)
        self._one_in = one_in
        self._report = report
        self._failing = 0
        self._faults = cycle(FAULTS)
        for _ in range(self._random.randrange(len(FAULTS))):
            next(self._faults)

    def around(self, name: str, call: Callable[..., Any], *arguments: Any) -> Any:
        """The call, or what becomes of it."""
        if name != "append":
            if self._failing and name in ("heads", "scan"):
                self._failing -= 1
                raise StoreFailed("the store", name, "an outage")
            return call(*arguments)
        if self._failing or not self._one_in or self._random.randrange(self._one_in):
            return call(*arguments)
        fault = next(self._faults)
        self._report(fault)
        if fault.endswith(", done"):
            call(*arguments)
        if fault.startswith("outage"):
            self._failing = _OUTAGE_CALLS
        raise Unclear("an append", fault)


def failing_store(
    folder: Path,
    seed: int,
    one_in: int,
    report: Callable[[str], None] = lambda fault: None,
    ordering: Callable[[Path], Ordering] = SqliteOrdering,
) -> Store:
    """A store in a folder whose ordering has outages, each of which is reported."""
    return Store(Faulty(ordering(folder), Outages(seed, one_in, report)), FileBlobs(folder / "blobs"))
