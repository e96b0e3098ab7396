"""Several clients over a store that fails, by many seeds; and that each safeguard is one: without it, a run fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from nebuli.store.collections.handover import _Handover
from nebuli.store.collections.inserts import Inserter
from nebuli.store.collections.reader_holds import ReaderHold
from nebuli.store.errors import StorageError
from nebuli.store.shards.shard_state import ShardState
from tests.nebuli.store.collections.acknowledged import Violation
from tests.nebuli.store.collections.simulation import simulate
from tests.support.seeds import drawn_seed
from tests.support.sizes import seeds

SEEDS = [45, *range(11)]
"""All that may happen happens with the first of them already."""


@pytest.mark.long
def test_all_readers_see_what_was_acknowledged_once_at_every_time() -> None:
    """ST-COL-1, ST-COL-4, ST-SH-4, ST-REN-3, ST-REN-6: through every fault, and over handovers; the model says what."""
    reports = [simulate(seed) for seed in seeds(SEEDS)]
    with drawn_seed() as seed:
        reports.append(simulate(seed))
    faults: Counter[str] = sum((each.faults for each in reports), Counter())
    assert {"heads lost", "append lost", "append unclear"} <= set(faults)
    assert sum(each.times for each in reports) >= 1000 * len(reports)
    for many in ("acknowledged", "unclear", "handovers", "late"):
        assert sum(getattr(each, many) for each in reports), many


def test_a_run_is_repeated_by_its_seed() -> None:
    """The same faults at the same virtual times."""
    assert simulate(1) == simulate(1)


# -- each safeguard is taken out in turn


async def nothing(*_: Any) -> None:
    """The safeguard does nothing."""


async def all_taken(
    self: Inserter, collection: Any, upper: int, some: Any, time: int
) -> tuple[list[Any], dict[str, tuple[int, int]], None]:
    """Producers' numbers say nothing."""
    return list(some), {}, None


def never_appended(self: ShardState, id_: bytes) -> bool:
    """Nobody knows an append again."""
    return False


async def none_missing(self: _Handover) -> None:
    """What was inserted since a rendition was built is forgotten."""


SAFEGUARDS: dict[str, tuple[Any, str, Callable[..., Any]]] = {
    "the hold of a reader": (ReaderHold, "set", nothing),
    "the numbers of producers": (Inserter, "_taken", all_taken),
    "the ids of appends": (ShardState, "appended", never_appended),
    "what came since a rendition was built": (_Handover, "_missing", none_missing),
}


@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_a_run_notices_what_is_missing(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: without it, one of the runs of the test above breaks a promise."""
    monkeypatch.setattr(*SAFEGUARDS[safeguard])
    assert any(broken(seed) for seed in SEEDS)


def broken(seed: int) -> bool:
    """Whether a promise was, or a client was told what it should not be."""
    try:
        simulate(seed)
    except (Violation, StorageError):
        return True
    return False
