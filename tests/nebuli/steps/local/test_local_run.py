"""A query in steps on this machine: real processes, a real query, and members that are killed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import psutil
import pytest

from nebuli.steps.errors import StateInUse, StateOfAnother
from nebuli.steps.local.local_members import LocalMembers
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol.errors import MemberFailed
from nebuli.steps.protocol.lockstep import Phase
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import SteppedQuery, stepped_query
from placement import parse_query
from tests.support.waiting import until_async
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long]

TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    physical:
{sources}
    sinks:
      - {name: totals, type: CSV, path: totals.csv}
"""
QUERY = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "totals", "type": "aggregate", "input": "sales", "by": ["shop"],
   "aggregates": {"sales": "count(*)", "amount": "sum(amount)"}},
  {"id": "out", "type": "sink", "input": "totals", "sink": "totals"}
]}
"""
ROWS = 60_000
FILES = 3
SOURCES = tuple(f"sales-{number}.csv" for number in range(FILES))
NOW = TriggerSettings(checkpoint_s=0.2)


def in_steps(sources: tuple[str, ...] = SOURCES, members: int = 2) -> SteppedQuery:
    lines = [f"      - {{logical: sales, type: CSV, path: {path}}}" for path in sources]
    topology = parse_topology(TOPOLOGY.replace("{sources}", "\n".join(lines)), "topology.yaml")
    return stepped_query(parse_query(QUERY, "totals", "query.json"), topology, members)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sales in three files: shop k of 7 sells row number r for r % 100."""
    for number, name in enumerate(SOURCES):
        rows = (f"shop-{row % 7},{row % 100}" for row in range(number * ROWS, (number + 1) * ROWS))
        (tmp_path / name).write_text("shop,amount\n" + "\n".join(rows) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def expected() -> set[tuple[str, str, str]]:
    every = range(FILES * ROWS)
    return {
        (f"shop-{shop}", str(len(every[shop::7])), str(sum(row % 100 for row in every[shop::7])))
        for shop in range(7)
    }


def found(here: Path) -> set[tuple[str, ...]]:
    header, *lines = (here / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    assert header == "shop,sales,amount"
    rows = [tuple(line.split(",")) for line in lines]
    assert len(rows) == len(set(rows))
    return set(rows)


async def until_running(run: LocalRun, epoch: int) -> None:
    async def there() -> bool:
        return run.coordinator.epoch >= epoch and run.coordinator.phase is Phase.RUNNING

    await until_async(there, f"epoch {epoch}")


async def stepped(run: LocalRun) -> bool:
    return run.coordinator.complete > 0


@pytest.mark.story
async def test_members_that_are_killed_lose_and_double_nothing(here: Path) -> None:
    """DBSP-REQ-2: each of two is killed, wherever it is, and the result is that of a run without kills."""
    async with asyncio.timeout(120), LocalRun(in_steps(), here / "state", here, NOW) as run:
        for member, epoch in ((0, 1), (1, 2)):
            await until_running(run, epoch)
            process = run.members.process(member)
            assert process is not None
            os.kill(process, signal.SIGKILL)
        await run.until_ended()
        assert run.coordinator.epoch >= 3
    assert found(here) == expected()


async def test_members_whose_template_is_killed_are_forked_from_another_one(here: Path) -> None:
    """All members are killed with it; each is started again, and the result is that of a run without kills."""
    async with asyncio.timeout(60), LocalRun(in_steps(), here / "state", here, NOW) as run:
        await until_running(run, 1)
        (template,) = [
            each
            for each in psutil.Process().children()
            if each.status() != psutil.STATUS_ZOMBIE and "serve_commands" in " ".join(each.cmdline())
        ]
        template.kill()
        await run.until_ended()
    assert found(here) == expected()


async def test_a_run_that_is_left_goes_on_where_it_was(here: Path) -> None:
    """The whole of it ends in the middle; the next one reads on, and gives the result once."""
    async with asyncio.timeout(60), LocalRun(in_steps(), here / "state", here, NOW) as run:
        await until_running(run, 1)
    assert not (here / "totals.csv").exists()
    async with asyncio.timeout(60), LocalRun(in_steps(), here / "state", here, NOW) as run:
        await run.until_ended()
    assert found(here) == expected()


async def test_a_step_that_cannot_be_repeated_ends_a_run_that_is_to_have_other_members(here: Path) -> None:
    """The run raises the member's error, although the change of members waits for the end of repeated steps."""
    settings = TriggerSettings(checkpoint_s=None)
    async with asyncio.timeout(60), LocalRun(in_steps(), here / "state", here, settings) as run:
        await until_async(lambda: stepped(run), "a step")
    for source in SOURCES:
        _, *rows = (here / source).read_text("utf-8").splitlines(keepends=True)
        (here / source).write_text("".join(("shop,amount\n", "shop-0,101\n", *rows[1:])), "utf-8")
    async with asyncio.timeout(30):
        with pytest.raises(MemberFailed, match="to repeat steps"):
            await LocalRun(in_steps(members=1), here / "state", here, settings).__aenter__()


async def test_a_state_folder_belongs_to_one_query_one_list_of_sources_and_one_run(here: Path) -> None:
    """Sources in another order would be taken for one another; with one more, members would read others than before."""
    async with asyncio.timeout(60), LocalRun(in_steps(), here / "state", here, NOW) as run:
        with pytest.raises(StateInUse, match="another process is using the state"):
            await LocalRun(in_steps(), here / "state", here, NOW).__aenter__()
        await until_async(lambda: stepped(run), "a step")
    for other, what in (
        (in_steps(SOURCES[::-1]), "list of sources"),
        (in_steps((*SOURCES, "sales-3.csv")), "list of sources"),
    ):
        with pytest.raises(StateOfAnother, match=what):
            await LocalRun(other, here / "state", here, NOW).__aenter__()


@pytest.mark.story
def test_a_run_begins_after_one_whose_leave_was_cancelled(here: Path) -> None:
    """Also on another event loop, in the same program: both fork their members from its one template."""

    async def interrupted() -> list[int]:
        async with LocalRun(in_steps(), here / "interrupted", here, NOW) as run:
            await until_running(run, 1)
            processes = [run.members.process(member) for member in range(2)]
            assert isinstance(run.members, LocalMembers)
            leaving = asyncio.create_task(run.members.__aexit__(None, None, None))
            for _ in range(3):  # members are told to end, and waited for
                await asyncio.sleep(0)
            leaving.cancel()
            await asyncio.wait([leaving])
        return [process for process in processes if process is not None]

    async def next_one(before: list[int]) -> None:
        async def have_ended() -> bool:
            return not any(psutil.pid_exists(process) for process in before)

        await until_async(have_ended, "the members before have ended")
        async with LocalRun(in_steps(), here / "next", here, NOW) as run:
            await until_running(run, 1)

    before = asyncio.run(interrupted())
    assert len(before) == 2
    asyncio.run(next_one(before))
