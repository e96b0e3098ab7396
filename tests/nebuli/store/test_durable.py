"""What a store has acknowledged is there after a loss of power, at any moment; each sync is needed for it.

The disk forgets what was not synced (`tests.power`). Its processes are killed as the power goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nebuli.store import StorageError, Store
from nebuli.store.errors import BlobMissing
from tests.power.machine import KILLED, Machine, Process, machine
from tests.support.sizes import seeds
from tests.support.stores import files, weights

pytestmark = [pytest.mark.processes, pytest.mark.long]

_SEEDS = range(24)
_LIVES = 3
_KINDS = ["", "-wal", "ordering.db", ".part", "/", "-shm"]
"""Changes of which files are counted, of which one is the last."""
_TYPED = {"StoreFull", "StoreFailed", "StoreUnusable", "Unclear"}

Fault = Callable[[Random], dict[str, int]]


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as made:
        yield made


def promised(process: Process) -> tuple[int, int]:
    """The shard's upper and the database's version, as far as somebody was told."""
    upper = version = 0
    for what, *numbers in process.said():
        match what:
            case "opened":
                upper, version = numbers
            case "appended":
                upper = numbers[0] + 1
            case "committed":
                version = numbers[0]
            case _:
                assert what == "failed", (what, numbers)
    return upper, version


async def check(folder: Path, upper: int, version: int) -> None:
    """All of it is there, and at most what was being done beside it."""
    async with Store.at(folder) as store:
        if "shard" in await store.shards():
            shard = await store.open_shard("shard")
            assert shard.upper in (upper, upper + 1), f"{upper} were appended, {shard.upper} are there"
            if shard.upper:
                expected = {-1: shard.upper} | dict.fromkeys(range(shard.upper), 1)
                assert weights(await shard.snapshot(shard.upper - 1)) == expected
            await shard.compact(full=True)
            await shard.compact(full=True)
        else:
            assert upper == 0
        states = store.state_store("state")
        versions = await states.versions()
        assert versions[-1] in (version, version + 1), f"{version} was committed, {versions} are there"
        async with await states.open(versions[-1]) as database:
            for key in (b"long", b"short"):
                found = await database.get("t", key)
                assert (found is None) == (versions[-1] == 0)
                if found is not None:
                    assert set(found.to_pybytes().split()) == {b"%d" % versions[-1]}
        assert len(files(folder)) <= 2


def live(power: Machine, random: Random, life: str, fault: dict[str, int]) -> Process:
    """A process, to its end and that of the power."""
    power.power_on(life)
    of = random.choice(_KINDS)
    end_at = random.randrange(1, 100 if of in ("", "-wal") else 30)
    process = power.start("store", end_at, of, False, fault, directory=str(power.place / "store"))
    code = power.ended(process)
    power.cut()
    failures = [words for words in process.said() if words[0] == "failed"]
    assert code == (3 if failures else KILLED), process.said()[-1]
    assert not failures or (fault and failures[0][1] in _TYPED), failures
    return process


def lives(power: Machine, seed: int, fault: Fault = lambda _: {}, **settings: Any) -> list[Process]:
    """A disk, and a few lives on it. Raises what is found to be lost."""
    power.new_disk(f"store {seed}", **settings)
    random = Random(seed)
    upper = version = 0
    lived = []
    for life in range(_LIVES):
        lived.append(live(power, random, f"{seed} {life}", fault(random)))
        found = promised(lived[-1])
        upper, version = max(upper, found[0]), max(version, found[1])
        power.power_on(f"after {seed} {life}")
        power.repair()
        asyncio.run(check(power.place / "store", upper, version))
        power.cut()
    return lived


@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_what_was_acknowledged_is_there_after_a_loss_of_power(power: Machine, seed: int) -> None:
    """DBSP-IN-2, DBSP-DB-8: inputs are shards, and a crash may be one of the power."""
    lives(power, seed)


@pytest.mark.parametrize("of", ["-wal", ".part", "/"])
def test_it_is_not_where_a_sync_does_nothing(power: Machine, of: str) -> None:
    """The negative control: of the log, of blobs, of their names."""
    lost: list[BaseException] = []
    for seed in range(100):
        try:
            lives(power, seed, lies=[of])
        except (AssertionError, StorageError) as error:
            lost.append(error)
            break
        finally:
            power.cut()
    assert lost, f"syncs of {of} are not needed"
    assert not isinstance(lost[0], BlobMissing) or of == "/"


@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_a_full_disk_is_said_to_be_and_loses_nothing(power: Machine, seed: int) -> None:
    """It is full from some change on, and is not in the next life."""

    def full(random: Random) -> dict[str, int]:
        return {"from": random.randrange(1, 60), "until": 10_000}

    said = [words for process in lives(power, seed, full) for words in process.said()]
    failed = [words for words in said if words[0] == "failed"]
    assert {name for _, name, _ in failed} <= {"StoreFull"}
    assert all(text.startswith("no space is left for /") and "nothing is lost" in text for *_, text in failed)


@pytest.mark.parametrize("seed", seeds(_SEEDS))
def test_a_sync_that_fails_loses_nothing(power: Machine, seed: int) -> None:
    """What it was for is not on the disk, and the next sync says that all is well."""
    lives(
        power,
        seed,
        lambda random: {"from": random.randrange(1, 60), "failing_syncs": random.choice([1, 2, 5])},
    )
