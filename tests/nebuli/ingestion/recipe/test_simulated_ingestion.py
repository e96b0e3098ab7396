"""Instances of an ingestion over a store that fails, by many seeds; without each safeguard a run fails."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pytest

from nebuli.ingestion.message_addresses import Addresses
from nebuli.ingestion.recipe.reclocking import Binding, Remap
from nebuli.ingestion.recipe.timed_messages import Reclocked, TimedSpan
from tests.nebuli.ingestion.recipe import simulation
from tests.nebuli.ingestion.recipe.pairs import Pairs
from tests.nebuli.ingestion.recipe.simulation import Violation, simulate
from tests.support.seeds import drawn_seed
from tests.support.sizes import seeds

SEEDS = range(18)


@pytest.mark.long
def test_instances_that_are_killed_do_as_one_that_is_not() -> None:
    """ST-ING-1, ST-ING-2, ST-ING-3, ST-ING-10, ST-ING-17, ST-ING-19, ST-ING-22, ST-VAR-2, ST-VAR-3, by the model."""
    reports = [simulate(seed, instances=1 + seed % 3) for seed in seeds(SEEDS)]
    with drawn_seed() as seed:
        reports.append(simulate(seed, instances=1 + seed % 3))
    faults = sum((each.faults for each in reports), Counter[str]())
    assert faults["heads lost"]
    assert faults["append lost"]
    assert all(each.times > 20 for each in reports)
    assert all(each.kills >= 3 for each in reports)
    assert all(each.released for each in reports)


@pytest.mark.long
@pytest.mark.parametrize("back_ms", [2_000, 7_200_000])
def test_clocks_that_are_set_back_move_no_time_back(back_ms: int) -> None:
    """ST-ING-10: times go on, nobody waits for the clocks, and at each time there is what there has to be."""
    for seed in seeds(range(4)):
        assert simulate(seed, instances=2, back_ms=back_ms).virtual_s < 200


# -- each safeguard is taken out in turn


async def own_proposal(self: Remap, addresses: Mapping[str, Addresses], *rest: Any) -> bool:
    """What was proposed is used, whatever is recorded."""
    upper = self._upper
    was_first = await _mint(self, addresses, *rest)
    if self._upper > upper:
        self._last = {source: dict(parts) for source, parts in addresses.items()}
        self._told.clear()
        self._told.append(Binding(self._upper - 1, {**self._last}))
    return was_first


def nothing_rehydrated(self: Pairs, output: pa.Table | None, states: Mapping[str, pa.Table]) -> None:
    """The state begins empty."""


async def released_as_read(self: Reclocked, span: TimedSpan) -> None:
    """The source is told of what was read, durable or not."""
    for ahead in self._ahead.values():
        if ahead.reader is not None:
            await ahead.reader.release(ahead.read)


async def begun_at_the_end(self: Reclocked, upper: int) -> None:
    """Sources are begun at the newest address that is recorded, not at that of the time."""
    await _begin(self, upper)
    self._remap._told.clear()
    self._told = {source: dict(self._remap.last.get(source, {})) for source in self._readers}


_mint, _begin = Remap.mint, Reclocked.begin
SAFEGUARDS = {
    "what is recorded is used": (Remap, "mint", own_proposal),
    "the state is rehydrated": (Pairs, "rehydrate", nothing_rehydrated),
    "a source is released behind what is durable": (Reclocked, "done", released_as_read),
    "a source is begun at the address of the time": (Reclocked, "begin", begun_at_the_end),
}


@pytest.mark.long
@pytest.mark.parametrize("safeguard", SAFEGUARDS)
def test_a_run_notices_what_is_missing(safeguard: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative controls: without it, one of the runs of the test above breaks a promise, or never ends."""
    monkeypatch.setattr(*SAFEGUARDS[safeguard])
    monkeypatch.setattr(simulation, "_DEADLINE_S", 100.0)  # who begins anew for ever takes long to do so
    assert any(broken(seed) for seed in SEEDS)


def broken(seed: int) -> bool:
    try:
        simulate(seed, instances=1 + seed % 3)
    except ExceptionGroup as group:
        return any(isinstance(each, Violation | AssertionError | TimeoutError) for each in group.exceptions)
    except (Violation, TimeoutError):
        return True
    return False
