"""The recipe at chosen times: instances are processes that are stopped, torn or killed at the moment that matters."""

from __future__ import annotations

import json
import signal
from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from nebuli import Sources
from nebuli.ingestion.definition import parse_definition
from tests.nebuli.store.collections.rows import counted
from tests.support.starter import Forked, start_program
from tests.support.waiting import until_async, wait_for

pytestmark = pytest.mark.processes(5)

KILLED = "is killed once it has recorded"
"""And before it has written anything."""

_INSTANCE = """
import asyncio, json, os, signal, sys
from dataclasses import replace

from nebuli import Sources
from nebuli.ingestion.recipe import timed_messages
from nebuli.ingestion.recipe.reclocking import Remap
from nebuli.store.shards.access import ShardAccess

KILLED = "is killed once it has recorded"
store, now, *faults = sys.argv[1:]
timed_messages.TICK_S = 0.05 if "ticks" in faults else 3600.0  # else all times are those of messages
append, mint = ShardAccess.append, Remap.mint


async def append_with_fault(access, parts, *more, **others):
    written = [each for each in parts if "/r1." in each.shard.name]  # and not the remap, nor the clock
    if written and KILLED in faults:
        await asyncio.Event().wait()
    if written and "is killed in the middle of a write" in faults:
        _, second, state = written
        if "differently" in faults:
            second = replace(second, updates=[(at, rows.slice(1)) for at, rows in second.updates])
        earlier = [each for each in state.updates if each[0] < 8]
        await append(access, [second, replace(state, updates=earlier, upper=8)], *more, **others)
        os.kill(os.getpid(), signal.SIGKILL)
    await append(access, parts, *more, **others)


async def mint_with_fault(remap, addresses, *more):
    if "stops before it records" in faults:
        faults.remove("stops before it records")
        print(json.dumps(addresses), flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)
    was_first = await mint(remap, addresses, *more)
    if KILLED in faults:
        os.kill(os.getpid(), signal.SIGKILL)
    return was_first


ShardAccess.append, Remap.mint = append_with_fault, mint_with_fault


async def main():
    async with Sources(store, now=lambda: int(now)) as sources:
        await sources.ingest("orders")

asyncio.run(main())
"""


class Site:
    """A source of a file that grows, and instances of it whose clocks the test sets."""

    def __init__(self, sources: Sources, folder: Path) -> None:
        self.sources = sources
        self.file = folder / "orders.txt"
        self._store = folder / "store"

    def add(self, *lines: str) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            file.writelines(f"{line}\n" for line in lines)

    async def create(self, more: str) -> None:
        await self.sources.create(
            parse_definition(f"name: orders\nfrom: {{type: File, path: '{self.file}'}}\n{more}")
        )

    @contextmanager
    def instance(self, now: int, *faults: str) -> Iterator[Forked]:
        """One that runs until it is killed, at the end of the context at the latest."""
        program = start_program(_INSTANCE, self._store, now, *faults)
        try:
            yield program
        finally:
            program.close()

    async def until_recorded(self, upper: int) -> int:
        """Wait until the remap has times below it; the address that is its last one."""

        async def recorded() -> bool:
            return (await self.sources.describe("orders")).remap_upper >= upper

        await until_async(recorded, f"times below {upper} are recorded")
        found = await self.sources.describe("orders")
        assert found.remap_upper == upper
        return found.raw_sources["data"].addresses[str(self.file)]

    async def until_written(self, upper: int) -> None:
        async def written() -> bool:
            return await self.upper() >= upper

        await until_async(written, f"times below {upper} are written")

    async def upper(self, collection: str = "orders") -> int:
        (rendition,) = (await self.sources.collections.describe(collection)).renditions
        return rendition.upper

    async def rows(self, as_of: int) -> Counter[tuple[Any, ...]]:
        return counted(await self.sources.collections.snapshot("orders", as_of))


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with Sources(tmp_path / "store", now=lambda: 1) as sources:
        yield Site(sources, tmp_path)


OFFSETS = "format: {type: CSV, header: false}\nschema: [{name: offset, type: int64}]"
"""Each line is a row with the byte at which the line begins; that at 0 is blank, and null."""


def offsets(*those: int) -> Counter[tuple[int | None]]:
    return Counter((each or None,) for each in those)


async def test_messages_are_available_at_the_time_that_was_first_recorded_for_their_addresses(
    site: Site,
) -> None:
    """ST-ING-10, ST-ING-11: of killed instances, in what is read at once; and while clocks are set back."""
    site.add("", "1", "3")
    await site.create(OFFSETS)
    with site.instance(1000, KILLED):
        assert await site.until_recorded(1001) == 5
    site.add("5", "7")
    with site.instance(400, KILLED):  # the next time is the one behind the last
        assert await site.until_recorded(1002) == 9
    site.add("9")
    assert await site.upper() == 0
    with site.instance(3000):
        assert await site.until_recorded(3001) == 11
        await site.until_written(3001)
    assert [await site.rows(at) for at in (999, 1000, 1001, 2999, 3000)] == [
        offsets(),
        offsets(0, 1, 3),
        offsets(0, 1, 3, 5, 7),
        offsets(0, 1, 3, 5, 7),
        offsets(0, 1, 3, 5, 7, 9),
    ]
    with site.instance(400, "ticks"):  # an address stands still while times go on
        await site.until_written(3005)
    assert (await site.sources.describe("orders")).raw_sources["data"].addresses == {str(site.file): 11}
    assert await site.rows(3004) == offsets(0, 1, 3, 5, 7, 9)


async def test_the_loser_of_a_race_goes_by_the_winners_record(site: Site) -> None:
    """ST-ING-16: it has proposed to record more, at another time; the winner is killed before it has written."""
    site.add("", "1")
    await site.create(OFFSETS)
    with site.instance(1000, "stops before it records", KILLED) as winner:
        assert proposed_by(winner) == 3
        site.add("3", "5")
        with site.instance(2000, "stops before it records") as loser:
            assert proposed_by(loser) == 7
            winner.send_signal(signal.SIGCONT)
            assert await site.until_recorded(1001) == 3
            loser.send_signal(signal.SIGCONT)
            assert await site.until_recorded(2001) == 7
            await site.until_written(2001)
    assert [await site.rows(at) for at in (999, 1000, 1999, 2000)] == [
        offsets(),
        offsets(0, 1),
        offsets(0, 1),
        offsets(0, 1, 3, 5),
    ]


def proposed_by(instance: Forked) -> int:
    """The address that an instance was about to have recorded as it stopped itself."""
    ((address,),) = (parts.values() for parts in json.loads(instance.stdout.readline()).values())
    wait_for(lambda: psutil.Process(instance.pid).status() == psutil.STATUS_STOPPED, "it has stopped")
    return int(address)


TRANSACTIONS = """
format: JSON
envelope: {type: debezium, key: [id], transactions: complete}
schema: [{name: id, type: int64}, {name: amount, type: int64}]
shards: 2
"""


def begin(name: str) -> str:
    return json.dumps({"status": "BEGIN", "id": name})


def end(name: str, count: int) -> str:
    return json.dumps({"status": "END", "id": name, "event_count": count})


def changes(name: str, ids: Iterable[int], first: int = 1) -> list[str]:
    return [
        json.dumps(
            {
                "before": None,
                "after": {"id": each, "amount": 10 * each},
                "op": "c",
                "transaction": {"id": name, "total_order": place},
            }
        )
        for place, each in enumerate(ids, start=first)
    ]


def orders(*ids: int) -> Counter[tuple[int, int]]:
    return Counter((each, 10 * each) for each in ids)


@pytest.mark.parametrize("differently", [False, True])
async def test_an_instance_begins_at_the_least_of_its_shards_uppers_and_compares_what_is_beyond(
    site: Site, differently: bool
) -> None:
    """ST-ING-8, ST-ING-14, ST-ING-15, ST-ING-17: shards at 7, 9 and 8, as a crash in the middle of a write leaves them.

    The source has nothing any more of what became available before 7: the state at 7 has what is needed of it.
    """
    site.add(begin("long"), *changes("long", range(1, 5)))
    await site.create(TRANSACTIONS)
    with site.instance(6):
        at_7 = await site.until_recorded(7)
        await site.until_written(7)
    site.add(
        *changes("long", range(5, 7), first=5),
        begin("short"),
        *changes("short", range(7, 13)),
        end("short", 6),
    )
    with site.instance(7, KILLED):
        await site.until_recorded(8)
    site.add(end("long", 6), begin("last"), *changes("last", range(13, 19)), end("last", 6))
    with site.instance(8, KILLED):
        await site.until_recorded(9)
    assert (await site.upper(), await site.upper("orders.transactions")) == (7, 7)
    with site.instance(8, "is killed in the middle of a write", *["differently"] * differently) as torn:
        assert torn.wait(60) == -signal.SIGKILL
    names = [each for each in await site.sources.store.shards() if "/r1." in each]
    uppers = [(await site.sources.store.open_shard(each)).upper for each in names]
    assert sorted(uppers) == [7, 8, 9]
    assert (await site.upper(), await site.upper("orders.transactions")) == (7, 8)
    kept = site.file.read_bytes()[at_7 - 64 :]  # by which a reader knows the file again
    site.file.write_bytes(b"?" * (at_7 - 64) + kept)

    with site.instance(9):
        if differently:
            await until_async(lambda: has_conflict(site), "the conflict is reported")
            assert [(await site.sources.store.open_shard(each)).upper for each in names] == uppers
            return
        await site.until_written(9)
    assert [await site.rows(at) for at in (6, 7, 8)] == [
        orders(),
        orders(*range(7, 13)),
        orders(*range(1, 19)),
    ]
    (status,) = await site.sources.instances("orders")
    assert (status.error, status.last_error) == (None, None)


async def has_conflict(site: Site) -> bool:
    (status,) = await site.sources.instances("orders")
    if status.health != "conflict":
        return False
    assert "at time 7 " in str(status.error)
    assert "new rendition" in str(status.error)
    return True
