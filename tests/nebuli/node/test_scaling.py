"""Queries in steps at workers that go on with other members, while programs push and read, and what is killed then."""

from __future__ import annotations

import asyncio
import contextlib
import csv
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import nebuli.blocking
from nebuli.circuits import Circuit
from nebuli.rpc.worker_client import WorkerClient
from nebuli.store.store_url import StoreUrl
from tests.nebuli.circuits.conftest import Rows, totals
from tests.nebuli.circuits.test_circuits_of_workers import of_circuits, started
from tests.nebuli.circuits.traffic import Traffic, traffic_on
from tests.nebuli.test_state_by_url import SUMS, check_sums, schemas
from tests.support.commands import Command
from tests.support.fleet import Fleet, MakeFleet
from tests.support.waiting import until_async, wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(300)]

TRIES = 5


@pytest.fixture
def fleet(make_fleet: MakeFleet) -> Fleet:
    return of_circuits(make_fleet())


@contextlib.asynccontextmanager
async def traffic_at(address: str, seed: int) -> AsyncIterator[tuple[Circuit, Traffic]]:
    """Traffic before, during and after the context; then the circuit is shut down."""
    async with asyncio.timeout(250), Circuit(address, deadline_s=120.0) as circuit:
        async with traffic_on(circuit, seed) as traffic:
            await traffic.goes_on()
            yield circuit, traffic
            await traffic.goes_on()
        await circuit.shut_down()


def rows_of_sink(path: Path) -> Rows:
    with path.open(encoding="utf-8") as lines:
        _, *rows = csv.reader(lines)
    return Counter({(shop, int(sales), int(amount)): 1 for shop, sales, amount in rows})


def members(fleet: Fleet, id_: str) -> list[str]:
    return [each["fragment"].partition("/")[2] for each in fleet.json("status", id_)["fragments"]][:-1]


async def test_a_query_at_workers_goes_on_with_more_members_and_with_fewer(fleet: Fleet) -> None:
    """DBSP-REQ-3: from 2 members to 4 and to 3, at two workers, while producers push and readers read."""
    id_, address = await asyncio.to_thread(started, fleet, "--checkpoint-every", "0.3")
    async with traffic_at(address, 1) as (circuit, traffic):
        for number, count in enumerate((4, 3), 1):
            ended = await asyncio.to_thread(fleet.run, "scale", id_, "--members", str(count))
            assert ended.exit_code == 0, ended.stderr
            assert ended.stderr.startswith(f"{count} members from step ")
            assert len((await circuit.status()).members) == count
            names = [(f"scaled-{number}", f"member-{member}") for member in range(count)]
            found = [each.split("/") for each in await asyncio.to_thread(members, fleet, id_)]
            assert [(scaling.rpartition("-")[0], member) for scaling, member in found] == names
            await traffic.goes_on()
    await asyncio.to_thread(fleet.wait_for_state, id_, "finished")
    assert rows_of_sink(fleet.out) == totals(traffic.pushed)
    assert fleet.run("unregister", id_).exit_code == 0
    assert not list(fleet.directory.glob("**/steps/*")), "what any of them kept is gone"


async def scaled(fleet: Fleet, id_: str, count: int) -> asyncio.subprocess.Process:
    """Who asks for other members, begun."""
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "nebuli", "scale", id_, "--members", str(count)),
        cwd=fleet.directory,
        env={"XDG_STATE_HOME": str(fleet.directory / "state"), **os.environ},
        stderr=asyncio.subprocess.PIPE,
    )


async def begun(fleet: Fleet) -> None:
    """Wait until the coordinator has noted that others are to follow."""

    folder = os.fspath(fleet.directory)

    async def is_noted() -> bool:
        return bool([*Path(folder).glob("**/members.json")])

    await until_async(is_noted, "others are to follow", 20.0)


def as_one_of(layouts: Sequence[int], fleet: Fleet, id_: str) -> int:
    """How many members it has: all of one layout, which run."""

    def found() -> int:
        status = fleet.json("status", id_)
        return len(status["fragments"]) - 1 if status["state"] == "running" else 0

    count = wait_for(found, f"{id_} runs")
    assert count in layouts
    return count


def scaled_at_last(fleet: Fleet, id_: str, count: int) -> None:
    """Have it go on with so many members, and ask again while it is refused, as it may be just behind a kill."""
    refusals = []
    for _ in range(TRIES):
        ended = fleet.run("scale", id_, "--members", str(count))
        if ended.exit_code == 0:
            return
        assert "when that is fixed, try again" in ended.stderr, ended.stderr
        refusals.append(ended.stderr)
    raise AssertionError(f"{refusals}\n{fleet.run('logs', id_, '--level', 'warning').stdout}")


@pytest.mark.parametrize(
    ("whom", "delay_s"),
    [
        ("coordinator's worker", 0.0),
        ("coordinator's worker", 1.0),
        ("other worker", 0.0),
        ("other worker", 0.4),
        ("client", 0.4),
        ("client", 1.0),
    ],
)
async def test_whoever_is_killed_meanwhile_it_goes_on_with_the_one_layout_or_the_other(
    fleet: Fleet, whom: str, delay_s: float
) -> None:
    """DBSP-REQ-3: nothing is lost, doubled or reordered, and it can be scaled afterwards."""
    id_, address = await asyncio.to_thread(started, fleet, "--checkpoint-every", "0.3")
    async with traffic_at(address, 2) as (circuit, traffic):
        asking = await scaled(fleet, id_, 4)
        await begun(fleet)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(delay_s):
                await asking.wait()
        match whom:
            case "client":
                with contextlib.suppress(ProcessLookupError):
                    asking.kill()
            case _:
                number = 0 if whom.startswith("coordinator") else 1
                await asyncio.to_thread(fleet.kill, number)
                await asyncio.to_thread(fleet.begin_again, number)
        await asking.communicate()
        await traffic.goes_on()
        await asyncio.to_thread(as_one_of, (2, 4), fleet, id_)
        await asyncio.to_thread(scaled_at_last, fleet, id_, 3)
        assert len((await circuit.status()).members) == 3
    await asyncio.to_thread(fleet.wait_for_state, id_, "finished")
    assert rows_of_sink(fleet.out) == totals(traffic.pushed)
    assert fleet.run("unregister", id_).exit_code == 0
    assert not list(fleet.directory.glob("**/steps/*")), "what any of them kept is gone"


async def pids(fleet: Fleet, generation: str) -> dict[str, int]:
    """Of the members' processes of a generation, by the ids that they have at their workers."""
    found = {}
    for node, grpc in zip(fleet.nodes, fleet.grpc, strict=True):
        async with WorkerClient(node, grpc) as client:
            found |= {
                each.id: each.pid for each in await client.statuses() if generation in each.id and each.pid
            }
    return found


@pytest.mark.parametrize("whom", ["copy/member-", "scaled-1-"])
async def test_where_a_member_is_killed_while_it_gives_or_takes_all_go_on_as_they_were(
    fleet: Fleet, whom: str
) -> None:
    """Before anything is given nothing has changed; the next try does it. What was begun is taken away."""
    id_, address = await asyncio.to_thread(started, fleet, "--checkpoint-every", "0.3")
    async with traffic_at(address, 3) as (circuit, traffic):
        asking = await scaled(fleet, id_, 4)
        await begun(fleet)
        found: dict[str, int] = {}

        async def are_there() -> bool:
            nonlocal found
            found = await pids(fleet, whom)
            return bool(found)

        await until_async(are_there, "processes")
        with contextlib.suppress(ProcessLookupError):  # others may have followed it by now
            os.kill(min(found.items())[1], signal.SIGKILL)
        _, said = await asking.communicate()
        assert asking.returncode == 1 or len((await circuit.status()).members) == 4, said
        await traffic.goes_on()
        count = await asyncio.to_thread(as_one_of, (2, 4), fleet, id_)
        assert count == (2 if asking.returncode else 4)
        await asyncio.to_thread(scaled_at_last, fleet, id_, 3)
    await asyncio.to_thread(fleet.wait_for_state, id_, "finished")
    assert rows_of_sink(fleet.out) == totals(traffic.pushed)


def test_sources_are_read_on_and_whoever_watches_it_follows(make_fleet: MakeFleet) -> None:
    """The sums of a generator's rows are exact, as others read it on; fewer members than sinks and sources need not.

    An input that is never pushed into keeps the query from its end until it was asked everything.
    """
    rows = 60_000
    fleet = make_fleet()
    fleet.data["nodes"][0]["physical"][0] |= {"count": rows, "rows_per_s": 5_000}
    (numbers,) = fleet.data["logical"]
    fleet.data["logical"].append({**numbers, "name": "pushed"})
    fleet.topology = fleet.written()
    fleet.query.write_text(json.dumps(held_open(json.loads(SUMS))), "utf-8")
    fleet.start()
    begun = fleet.run("start", "--stepped", "--checkpoint-every", "0.5", fleet.topology, fleet.query)
    id_ = begun.stdout.strip()
    (fleet.directory / "watching").mkdir()
    watching = Command("watch", id_, directory=fleet.directory / "watching")
    wait_for(
        lambda: sum(each["rows_in"] or 0 for each in fragments(fleet, id_)) > rows // 10, "rows are read"
    )
    few = fleet.run("scale", id_, "--members", "1")
    assert (few.exit_code, "1 member is too few" in few.stderr) == (2, True), few.stderr
    done = fleet.run("scale", id_, "--members", "4", "--json")
    assert done.exit_code == 0, done.stderr
    assert fleet.json("scale", id_, "--members", "4")["members"] == 4, "which they are already"
    asked = fleet.run(
        "query", id_, "SELECT count(*) AS parts, sum(rows) > 0 AS some FROM out", "--format", "csv"
    )
    assert (asked.exit_code, asked.stdout.split()) == (0, ["parts,some", "7,True"]), asked.stderr
    assert " at step " in asked.stderr
    unknown = fleet.run("query", id_, "SELECT * FROM nothing")
    assert unknown.exit_code == 2, unknown.stderr
    wait_for(lambda: str(rows) in fleet.run("query", id_, "SELECT sum(rows) FROM out").stdout, "all is read")
    with nebuli.blocking.Circuit(fleet.json("status", id_)["circuit"]) as circuit:
        circuit.shut_down()
    ended = watching.end()
    assert ended.exit_code == 0, ended.stderr
    assert "the query continues with 4 members" in ended.stderr
    check_sums(fleet.out, rows)


def held_open(query: dict[str, Any]) -> dict[str, Any]:
    """Have it take also what is pushed into an input of its own: it ends as it is shut down."""
    read, first, *others = query["operators"]
    pushed = {"id": "pushed", "type": "source", "logical": "pushed"}
    both = {"id": "both", "type": "union", "inputs": [read["id"], "pushed"]}
    return {"operators": [read, pushed, both, {**first, "input": "both"}, *others]}


def test_a_file_of_a_pattern_that_is_gone_keeps_others_from_taking_over(make_fleet: MakeFleet) -> None:
    """Those that there are do not read it any more, and go on; others take over once it is there again."""
    fleet = make_fleet()
    folder = fleet.directory
    files = [folder / f"part-{number}.csv" for number in range(3)]
    for number, file in enumerate(files):
        file.write_text(f"n\n{1_000_000 + number}\n", "utf-8")
    slow = {"logical": "numbers", "type": "Generator", "count": 100_000, "rows_per_s": 100}
    source = {"logical": "numbers", "type": "CSV", "path": str(folder / "part-*.csv")}
    fleet.data["nodes"][0]["physical"] = [source, slow]
    fleet.topology = fleet.written()
    fleet.start()
    begun = fleet.run("start", "--stepped", "--checkpoint-every", "0.3", fleet.topology, fleet.query)
    id_ = begun.stdout.strip()
    wait_for(lambda: sum(each["rows_in"] or 0 for each in fragments(fleet, id_)) > 200, "files are read")
    text = files[1].read_text("utf-8")
    files[1].unlink()
    refused = fleet.run("scale", id_, "--members", "4")
    assert refused.exit_code == 1, refused.stderr
    assert "files that were read are gone" in refused.stderr
    assert as_one_of((2,), fleet, id_) == 2
    files[1].write_text(text, "utf-8")
    done = fleet.run("scale", id_, "--members", "4")
    assert done.exit_code == 0, done.stderr
    assert as_one_of((4,), fleet, id_) == 4


def fragments(fleet: Fleet, id_: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = fleet.json("status", id_)["fragments"]
    return found


async def test_state_in_postgres_goes_to_others_too(make_fleet: MakeFleet, url: StoreUrl) -> None:
    fleet = make_fleet()
    fleet.states = [replace(url, schema=f"{url.schema}_{number}") for number in range(2)]
    of_circuits(fleet)
    id_, address = await asyncio.to_thread(started, fleet, "--checkpoint-every", "0.5")
    async with traffic_at(address, 4) as (circuit, traffic):
        for count in (4, 3):
            ended = await asyncio.to_thread(fleet.run, "scale", id_, "--members", str(count))
            assert ended.exit_code == 0, ended.stderr
            assert len((await circuit.status()).members) == count
            await traffic.goes_on()
    await asyncio.to_thread(fleet.wait_for_state, id_, "finished")
    assert rows_of_sink(fleet.out) == totals(traffic.pushed)
    assert fleet.run("unregister", id_).exit_code == 0
    assert schemas(url, "_") == {each.schema for each in fleet.states}, "what any of them kept is gone"
