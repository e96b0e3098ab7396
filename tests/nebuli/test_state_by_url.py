"""A query in steps whose state is in Postgres and an object store: nothing of it is on the disk of the machine."""

from __future__ import annotations

import asyncio
import json
import os
import re
import select
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import psycopg
import pyarrow as pa
import pytest

from nebuli.node.records import FragmentRecord, Records, StateUnusable
from nebuli.rpc.status import FragmentState, FragmentStatus
from nebuli.steps.errors import StateGone, StateInUse, StateOfAnother
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.member.member_store import LOG
from nebuli.steps.protocol.errors import Fenced
from nebuli.steps.protocol.lockstep import Phase
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import SteppedQuery, stepped_query
from nebuli.store import Store
from nebuli.store.held_lock import HeldLock
from nebuli.store.ordering.postgres import PostgresLock
from nebuli.store.store_url import StoreUrl
from placement import parse_query
from placement.stepped_plan import MemberFragment
from tests.support.commands import Command, nebuli
from tests.support.fleet import MakeFleet
from tests.support.postgres import server
from tests.support.waiting import until_async, wait_for
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long]

TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    physical:
      - {logical: sales, type: CSV, path: sales-0.csv}
      - {logical: sales, type: CSV, path: sales-1.csv}
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
SLOW = """
logical:
  - {name: numbers, schema: [{name: n, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    physical:
      - {logical: numbers, type: Generator, count: 7000, rows_per_s: 1000}
    sinks:
      - {name: out, type: CSV, path: sums.csv}
"""
SUMS = """
{"operators": [
  {"id": "in", "type": "source", "logical": "numbers"},
  {"id": "parts", "type": "project", "input": "in", "columns": {"part": "n % 7", "n": "n"}},
  {"id": "sums", "type": "aggregate", "input": "parts", "by": ["part"],
   "aggregates": {"rows": "count(*)", "sum": "sum(n)"}},
  {"id": "out", "type": "sink", "input": "sums", "sink": "out"}
]}
"""
ROWS, SHOPS = 60_000, 2_000
NOW = TriggerSettings(checkpoint_s=0.2)


def in_steps(members: int = 2, query: str = QUERY) -> SteppedQuery:
    topology = parse_topology(TOPOLOGY, "topology.yaml")
    return stepped_query(parse_query(query, "totals", "query.json"), topology, members)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with sales in two files: shop k of 2,000 sells row number r for r % 100."""
    for number in range(2):
        rows = (f"shop-{row % SHOPS},{row % 100}" for row in range(number * ROWS, (number + 1) * ROWS))
        (tmp_path / f"sales-{number}.csv").write_text("shop,amount\n" + "\n".join(rows) + "\n", "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def check_totals(here: Path) -> None:
    header, *lines = (here / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    every = range(2 * ROWS)
    assert header == "shop,sales,amount"
    assert sorted(lines) == sorted(
        f"shop-{shop},{len(every[shop::SHOPS])},{sum(row % 100 for row in every[shop::SHOPS])}"
        for shop in range(SHOPS)
    )


async def until_running(run: LocalRun, epoch: int) -> None:
    async def there() -> bool:
        return run.coordinator.epoch >= epoch and run.coordinator.phase is Phase.RUNNING

    await until_async(there, f"epoch {epoch}")


async def test_members_and_then_all_are_killed_and_nothing_is_lost_or_doubled(
    here: Path, url: StoreUrl
) -> None:
    """DBSP-REQ-2, where no disk is shared: the result is that of a run without kills."""
    async with asyncio.timeout(120), LocalRun(in_steps(), url, here, NOW) as run:
        for member, epoch in ((0, 1), (1, 2)):
            await until_running(run, epoch)
            os.kill(run.members.process(member) or 0, signal.SIGKILL)
        await until_running(run, 3)
    assert not (here / "totals.csv").exists()
    async with asyncio.timeout(120), LocalRun(in_steps(), url, here, NOW) as run:
        await run.until_ended()
    check_totals(here)
    assert {each.name for each in here.iterdir()} == {"sales-0.csv", "sales-1.csv", "totals.csv"}


def test_all_is_killed_at_once_and_goes_on_elsewhere(tmp_path: Path, url: StoreUrl) -> None:
    """DBSP-REQ-2: the command and its members, by SIGKILL; it is run again in another folder, with the same files."""
    here, elsewhere = tmp_path / "here", tmp_path / "elsewhere"
    for folder in (here, elsewhere):
        folder.mkdir()
        (folder / "topology.yaml").write_text(SLOW, "utf-8")
        (folder / "sums.json").write_text(SUMS, "utf-8")
    options = ("--stepped", "--members", "2", "--checkpoint-every", "0.2", "--state", str(url))
    first = Command("run", *options, here / "topology.yaml", here / "sums.json", directory=here)
    first.wait_until_said("members running")
    wait_for(lambda: checkpoints(url) >= 2, "checkpoints are made")
    first.process.kill()
    first.end()
    ended = nebuli("run", *options, elsewhere / "topology.yaml", elsewhere / "sums.json", directory=elsewhere)
    assert (ended.exit_code, "running, from step" in ended.stderr) == (0, True), ended.stderr
    check_sums(elsewhere / "sums.csv", 7_000)


def check_sums(file: Path, rows: int) -> None:
    header, *lines = file.read_text("utf-8").replace('"', "").splitlines()
    assert (header, sorted(lines)) == (
        "part,rows,sum",
        [f"{part},{len(range(part, rows, 7))},{sum(range(part, rows, 7))}" for part in range(7)],
    )


def checkpoints(url: StoreUrl) -> int:
    """The version of the first member's state."""

    async def asked() -> int:
        async with Store.at(url / "member-0") as store:
            return (await store.state_store(LOG).versions())[-1]

    return asyncio.run(asked())


def test_rows_that_cannot_be_computed_are_put_next_to_the_topology(tmp_path: Path, url: StoreUrl) -> None:
    """The steps that are skipped are known by the state: another command that continues skips them, too."""
    (tmp_path / "sales-0.csv").write_text("shop,amount\na,1\nb,0\na,4\n", "utf-8")
    (tmp_path / "sales-1.csv").write_text("shop,amount\nc,2\n", "utf-8")
    (tmp_path / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    query = json.loads(QUERY)
    query["operators"][1] |= {"aggregates": {"sales": "count(*)", "amount": "sum(8 // amount)"}}
    (tmp_path / "query.json").write_text(json.dumps(query), "utf-8")
    files = tmp_path / "topology.yaml", tmp_path / "query.json"
    run = ("run", *files, "--stepped", "--members", "2", "--state", str(url), "--json")
    failed = nebuli(*run, directory=tmp_path)
    assert failed.exit_code == 2, failed.stderr
    said = re.search(r"step (\d+) of input sales cannot be computed: .* --skip-step \1 ", failed.error)
    assert said, failed.error
    for options in (("--skip-step", said[1]), ()):
        ended = nebuli(*run, *options, directory=tmp_path)
        assert ended.exit_code == 0, ended.stderr
        (skipped,) = json.loads(ended.stdout)["skipped_rows"]
        assert skipped["file"] == str(tmp_path / f"skipped-{said[1]}-sales.arrow")
    with pa.ipc.open_file(skipped["file"]) as rows:
        assert rows.read_all().select(["shop", "amount"]).to_pylist() == [{"shop": "b", "amount": 0}]
    _, *lines = (tmp_path / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    assert sorted(lines) == ["a,2,10", "c,1,4"]


async def test_ways_that_fail_now_and_then_change_nothing(here: Path, unsteady_url: StoreUrl) -> None:
    """DBSP-REQ-2, with questions and answers that are lost, late, or errors although all was done."""
    async with asyncio.timeout(200), LocalRun(in_steps(), unsteady_url, here, NOW) as run:
        await until_running(run, 1)
        os.kill(run.members.process(0) or 0, signal.SIGKILL)
        await run.until_ended()
    check_totals(here)


async def test_a_database_that_is_killed_and_comes_back_is_waited_for(here: Path, bucket: str) -> None:
    with server() as own:
        url = StoreUrl(own.url, "sales", bucket)
        async with asyncio.timeout(200), LocalRun(in_steps(), url, here, NOW) as run:
            await until_running(run, 1)
            own.kill()
            starting = asyncio.create_task(asyncio.to_thread(own.start))
            await run.until_ended()
            await starting
    check_totals(here)


async def test_state_by_url_belongs_to_one_query_and_one_run(here: Path, url: StoreUrl) -> None:
    async with asyncio.timeout(120), LocalRun(in_steps(), url, here, NOW) as run:
        with pytest.raises(StateInUse, match=rf"\(process {os.getpid()} on .*; the claim of a lost machine"):
            await LocalRun(in_steps(), url, here, NOW).__aenter__()
        await run.until_ended()
    with pytest.raises(StateOfAnother, match="is that of another query"):
        await LocalRun(
            in_steps(query=QUERY.replace("sum(amount)", "max(amount)")), url, here, NOW
        ).__aenter__()
    Store.remove(url / "member-1")
    with pytest.raises(StateGone, match=r"schema=test_\d+/member-1&blobs=.* is missing or empty"):
        await LocalRun(in_steps(), url, here, NOW).__aenter__()


async def test_other_members_go_on_and_what_those_before_have_kept_is_gone(here: Path, url: StoreUrl) -> None:
    async with asyncio.timeout(120), LocalRun(in_steps(members=1), url, here, NOW) as run:
        await until_running(run, 1)

        async def has_stepped() -> bool:
            return run.coordinator.complete > 0

        await until_async(has_stepped, "a step")
    async with asyncio.timeout(120), LocalRun(in_steps(members=3), url, here, NOW) as run:
        await run.until_ended()
    check_totals(here)
    assert schemas(url, "/") == {f"{url.schema}/coordinator"} | {
        f"{url.schema}/scaled-1/member-{number}" for number in range(3)
    }


async def test_state_in_which_nothing_counts_yet_is_anybodys(here: Path, url: StoreUrl) -> None:
    (here / "sales-1.csv").rename(here / "away.csv")
    with pytest.raises(Exception, match=r"sales-1\.csv"):
        async with asyncio.timeout(120), LocalRun(in_steps(), url, here, NOW) as run:
            await run.until_ended()
    (here / "away.csv").rename(here / "sales-1.csv")
    async with asyncio.timeout(120), LocalRun(in_steps(members=1), url, here, NOW) as run:
        await run.until_ended()
    check_totals(here)


async def test_who_has_lost_the_lock_takes_it_again(here: Path, url: StoreUrl) -> None:
    async with asyncio.timeout(120), LocalRun(in_steps(), url, here, NOW) as run:
        await until_running(run, 1)
        assert cut(url, "run, process %")

        async def is_taken_again() -> bool:
            return bool(named(url, "run, process %"))

        await until_async(is_taken_again, "the lock is held again")
        with pytest.raises(StateInUse):
            await LocalRun(in_steps(), url, here, NOW).__aenter__()
        await run.until_ended()
    check_totals(here)


def unaware(self: HeldLock, lock: PostgresLock) -> None:
    """In place of a thread that sees when the lock is lost."""
    select.select([self._closed], [], [])
    lock.close()


async def test_of_two_runs_that_both_take_it_for_theirs_the_first_writes_nothing_more(
    here: Path, url: StoreUrl, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On two machines: the first is cut off, its lock is forgotten, and it does not hear of it."""
    monkeypatch.setattr(HeldLock, "_hold", unaware)
    there = tmp_path_factory.mktemp("there")
    for file in here.iterdir():
        shutil.copy(file, there)
    (there / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    (there / "totals.json").write_text(QUERY, "utf-8")
    async with asyncio.timeout(90), LocalRun(in_steps(), url, here, NOW) as run:
        await until_running(run, 1)
        await run.pause()
        files = (there / "topology.yaml", there / "totals.json")
        assert cut(url, "run, process %")
        cut(url, "state/%")
        arguments = ("--stepped", "--members", "2", "--state", str(url))
        ended = await asyncio.to_thread(nebuli, "run", *arguments, *files, directory=there)
        assert (ended.exit_code, ended.stderr.count("Error")) == (0, 0), ended.stderr
        await run.start()
        with pytest.raises(Fenced, match="another coordinator has taken over with epoch"):
            await run.until_ended()
    check_totals(there)
    assert not (here / "totals.csv").exists()


def test_a_worker_that_has_lost_its_place_without_a_word_records_nothing(
    url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HeldLock, "_hold", unaware)
    status = FragmentStatus("1", "q/member-0", FragmentState.RUNNING)
    fragment = MemberFragment(
        id="q/member-0", node="a:1", circuit="c", plan=in_steps().plan, member=0, feeds=(), external=()
    )
    with Records(url) as first:
        first.save(FragmentRecord(fragment=fragment, status=status))
        with pytest.raises(StateUnusable, match=rf"in use by another worker \(process {os.getpid()} on "):
            Records(url).__enter__()
        assert cut(url, "worker, process %")
        with Records(url) as second:
            assert second.load() == [FragmentRecord(fragment=fragment, status=status)]
            with pytest.raises(OSError, match="another member appends to"):
                first.save(
                    FragmentRecord(fragment=fragment, status=replace(status, state=FragmentState.FINISHED))
                )
            second.save(
                FragmentRecord(fragment=fragment, status=replace(status, state=FragmentState.STOPPED))
            )
    with Records(url) as third:
        assert [each.status.state for each in third.load()] == [FragmentState.STOPPED]
        third.forget("1")
    with Records(url) as fourth:
        assert fourth.load() == []


def test_a_worker_that_is_gone_with_its_disk_is_replaced_by_one_with_an_empty_disk(
    make_fleet: MakeFleet, url: StoreUrl
) -> None:
    """Each of two, one with a member and one with the coordinator too: the sums are exact, and nothing begins anew."""
    rows = 60_000
    fleet = make_fleet()
    fleet.data["nodes"][0]["physical"][0] |= {"count": rows, "rows_per_s": 6_000}
    fleet.topology = fleet.written()
    fleet.query.write_text(SUMS, "utf-8")
    fleet.states = [replace(url, schema=f"{url.schema}_{number}") for number in range(2)]
    fleet.start()
    begun = fleet.run("start", "--stepped", "--checkpoint-every", "0.5", fleet.topology, fleet.query)
    assert begun.exit_code == 0, begun.error
    id_ = begun.stdout.strip()

    def rows_in() -> int:
        fragments = fleet.json("status", id_)["fragments"]
        return max(each["rows_in"] or 0 for each in fragments)

    for number in range(2):
        wait_for(lambda: rows_in() > (1 + number) * rows // 5, "rows are read")  # noqa: B023 - asked here
        fleet.kill(number)
        assert not (fleet.directory / "state" / "nebuli" / "workers").exists()
        shutil.rmtree(fleet.directory / f"worker{number}")
        fleet.begin_again(number)
    fleet.wait_for_state(id_, "finished")
    check_sums(fleet.out, rows)
    assert fleet.run("unregister", id_).exit_code == 0
    assert schemas(url, "_") == {f"{each.schema}" for each in fleet.states}, "what it kept is gone with it"


def schemas(url: StoreUrl, then: str) -> set[str]:
    """Those of stores that begin as this one's does, and so behind that."""
    with psycopg.connect(url.server, autocommit=True) as connection:
        found = connection.execute(
            "select nspname from pg_namespace where starts_with(nspname, %s)", (f"{url.schema}{then}",)
        ).fetchall()
    return {str(name) for (name,) in found}


def named(url: StoreUrl, name: str) -> list[tuple[object, ...]]:
    """The connections to the server that are called so."""
    with psycopg.connect(url.server, autocommit=True) as connection:
        return connection.execute(
            "select pid from pg_stat_activity where application_name like %s", (name,)
        ).fetchall()


def cut(url: StoreUrl, name: str) -> list[tuple[object, ...]]:
    """Cut them; which they were."""
    with psycopg.connect(url.server, autocommit=True) as connection:
        return connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name like %s", (name,)
        ).fetchall()
