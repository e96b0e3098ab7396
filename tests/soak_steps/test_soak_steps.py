"""That runs in steps come through what a seed draws; `make soak-steps` tells more stories."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.soak_steps import fleet_query, story
from tests.soak_steps.audit import Audit, Violation
from tests.soak_steps.fleet_story import FLEET_FAULTS, tell_of_fleet
from tests.soak_steps.query import Sizes, expected
from tests.soak_steps.story import tell

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.mark.parametrize("seed", [4, 13])
async def test_whatever_befalls_processes_and_disks_all_comes_out_once(seed: int, tmp_path: Path) -> None:
    """DBSP-REQ-2, FT-PR-5, FT-PR-10: at each moment a member has one version or two, and all have one in common."""
    told = await tell(seed, tmp_path, faults=6)
    assert sum(told.tally[fault] for fault in story.FAULTS) >= 3, "it has not ended before"
    assert told.tally["epoch over"] + told.tally["coordinator killed"] >= 1
    assert told.tally["ended"]


@pytest.mark.parametrize("seed", [601])
async def test_whatever_befalls_workers_all_comes_out_once(seed: int, tmp_path: Path) -> None:
    """DBSP-REQ-2, FT-PR-10: with late rows, and over a second run behind files that have grown."""
    told = await tell_of_fleet(seed, tmp_path, faults=6)
    assert sum(told.tally[fault] for fault in FLEET_FAULTS) >= 3, "it has not ended before"
    assert told.tally["late rows"]


async def test_a_row_that_workers_lose_is_told_with_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_query.FleetQuery, "_sum", lambda _, key: (f"name-{key}", "0", "0"))
    with pytest.raises(Violation, match=r"sums: Counter.*\('name-0', '0', '0'\): 1.* is missing") as broken:
        await tell_of_fleet(2, tmp_path, faults=0)
    assert "in story 2 on workers" in broken.value.__notes__[0]


async def test_a_row_that_is_lost_is_told_with_the_story(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes = Sizes(sources=1, rows=50)
    monkeypatch.setattr(story, "expected", lambda _: expected(Sizes(sources=1, rows=51)))
    with pytest.raises(Violation, match=r"rows: Counter.*\('50', '1'\): 1.* is missing") as broken:
        await tell(2, tmp_path, faults=0, sizes=sizes)
    assert "in story 2" in broken.value.__notes__[0]


async def test_an_output_that_changes_is_told(tmp_path: Path) -> None:
    known: dict[object, int] = {("rows", 3): 1}
    with pytest.raises(Violation, match=r"\('rows', 3\) came out as something else"):
        Audit._same(known, ("rows", 3), 2, "came out")
