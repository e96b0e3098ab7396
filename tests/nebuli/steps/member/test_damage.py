"""Damage in a state folder: a circuit that begins with it is refused, by name, or comes to the right result."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from nebuli.dataflow import SteppedCircuit
from nebuli.steps.logs import output_log
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.member.member_store import LOG
from nebuli.steps.protocol.errors import MemberFailed
from nebuli.store import Store
from nebuli.store.errors import BeyondEnd
from tests.support.damaging import FOLDERS, STATE, Kept, continued, outcome
from tests.support.sizes import some
from tests.support.told_members import Members, numbers, pushed_query, until_out, until_running

pytestmark = [pytest.mark.processes, pytest.mark.long]

_EACH = 40
"""Damages of a test; all 25 tests together have 1,000."""


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Kept:
    return asyncio.run(Kept.made(tmp_path_factory.mktemp("kept")))


async def tried(kept: Kept, seed: int) -> None:
    damage, found = await outcome(kept, FOLDERS[seed % len(FOLDERS)], Random(seed))
    assert damage is not None
    # A member's store, or the whole folder: a claim that is changed may be that of another query.
    owner = STATE if len(damage.file.parts) == 1 else f"{STATE}/{damage.file.parts[0]}"
    named = [str(kept.place / owner), damage.file.name]
    assert found == "right" or any(name in found for name in named), f"{seed}: {damage}: {found}"


@pytest.mark.parametrize("kind", FOLDERS)
async def test_without_damage_the_result_is_right(kept: Kept, kind: str) -> None:
    assert await outcome(kept, kind, None) == (None, "right")


@pytest.mark.parametrize("seed", range(6))
async def test_a_damaged_file_is_refused_by_name_or_the_result_is_right(kept: Kept, seed: int) -> None:
    await tried(kept, seed)


@pytest.mark.parametrize("block", range(25))
async def test_a_thousand_damages_have_no_silent_wrong_result(kept: Kept, block: int) -> None:
    for seed in some(range(block * _EACH, (block + 1) * _EACH)):
        await tried(kept, seed)


async def test_a_checkpoint_beyond_the_input_log_is_refused(tmp_path: Path) -> None:
    circuit = Members(pushed_query(1), tmp_path)
    async with Store.at(circuit.store(0)) as store, await store.state_store(LOG).open(0) as database:
        database.set_step(3)
        await database.commit()
    async with circuit, circuit.coordinated() as coordinator:
        with pytest.raises(
            MemberFailed, match="checkpoint of member 0 is at 3, but input log member ends at 0"
        ):
            await asyncio.wait_for(coordinator.running, 30)  # type: ignore[attr-defined]


async def test_a_repeated_step_that_comes_out_different_ends_the_circuit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    circuit = Members(pushed_query(1), tmp_path)
    async with circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        await circuit.push_numbers(0, range(3))
        await until_out(circuit, Counter(range(3)))
    monkeypatch.setattr(output_log, "_same", lambda before, now: before.num_rows == 0)
    async with circuit, circuit.coordinated() as coordinator:
        with pytest.raises(MemberFailed, match="its rows in rows, sums differ from the rows in output log"):
            await asyncio.wait_for(coordinator.running, 30)  # type: ignore[attr-defined]
    assert sum(map(numbers, await circuit.output()), Counter()) == Counter(range(3))


async def test_a_step_with_more_rows_than_were_logged_is_refused(tmp_path: Path) -> None:
    query = pushed_query(1)
    schemas = SteppedCircuit(query.plan, 0).inputs
    circuit = Members(query, tmp_path)
    async with Store.at(circuit.store(0)) as store:
        await InputLog.open(store, LOG, schemas)
        remap = await store.open_shard(f"{LOG}/remap")
        fixed = pa.record_batch([["a"], [0], [5], [1]], schema=remap.schema)
        addresses = await store.open_shard(f"{LOG}/addresses")
        await store.append([remap.part([(0, fixed)], 0, 1), addresses.part([], 0, 1)])
    with pytest.raises(BeyondEnd, match="step 0 of input log member is at 5, but its input a ends at 0"):
        await circuit.start(0)
    await circuit.end(0)


async def test_a_member_that_finds_damage_ends_the_circuit_in_its_first_epoch(
    kept: Kept, caplog: pytest.LogCaptureFixture
) -> None:
    """The others notice that it leaves, and a new epoch would begin again and again."""
    kept.put_back("killed")
    *_, newest = sorted((kept.place / STATE / "member-0" / "blobs" / "shard%2Fmember%2Finput%2Fa").iterdir())
    newest.write_bytes(bytes(newest.stat().st_size))
    assert newest.name in await continued(kept)
    assert "all members return to the last checkpoint" not in caplog.text
