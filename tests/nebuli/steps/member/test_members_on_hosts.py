"""Members that are processes, on as many addresses as there are hosts: what they read, who is killed, how all ends."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest

from nebuli.connectors.errors import OutputError
from nebuli.dataflow import SteppedCircuit
from nebuli.steps.errors import MembersEnd
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.member_store import LOG
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol.errors import MemberFailed
from nebuli.steps.protocol.lockstep import Phase
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import CLAIM, SteppedQuery, stepped_query
from nebuli.store import Store
from placement import parse_query
from tests.soak_steps.query import OUTPUTS, Sizes, expected, found, prepare, query
from tests.support.waiting import until_async
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long]

NOW = TriggerSettings(checkpoint_s=0.2)
QUERY = """
{"operators": [
  {"id": "numbers", "type": "source", "logical": "numbers"},
  {"id": "out", "type": "sink", "input": "numbers", "sink": "out"}
]}
"""


def hosts(number: int) -> list[str]:
    return [f"127.100.{host + 1}.1" for host in range(number)]


def numbers_query(members: int, *sources: str, text: str = QUERY) -> SteppedQuery:
    """All numbers of these sources, which are settings in YAML."""
    lines = ["logical: [{name: numbers, schema: [{name: n, type: int64}]}]", "nodes:"]
    lines += ["  - address: 127.0.0.1:27900", "    sinks: [{name: out, type: CSV, path: out.csv}]"]
    lines += ["    physical:", *(f"      - {{logical: numbers, {source}}}" for source in sources)]
    topology = parse_topology("\n".join(lines), "topology.yaml")
    return stepped_query(parse_query(text, "numbers", "query.json"), topology, members)


def written(folder: Path) -> Counter[int]:
    return Counter(map(int, (folder / "out.csv").read_text("utf-8").split()[1:]))


async def until_running(run: LocalRun, epoch: int = 1) -> None:
    async def there() -> bool:
        return run.coordinator.epoch >= epoch and run.coordinator.phase is Phase.RUNNING

    await until_async(there, f"epoch {epoch}")


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    prepare(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("members", "on"), [(2, 2), (4, 2), (8, 2), (3, 3), (4, 4), (16, 4)])
async def test_the_result_does_not_depend_on_how_many_members_there_are_and_where(
    members: int, on: int, here: Path
) -> None:
    """DBSP-REQ-1: a join, sums and windows over so many processes on so many addresses."""
    sizes = Sizes(sources=4, rows=400, rate=4000)
    run = LocalRun(query(sizes, members), here / "state", here, NOW, hosts=hosts(on))
    async with asyncio.timeout(280), run:
        await until_running(run)
        listening = {line.address.partition(":")[0] for line in run.coordinator.lines if line.address}
        assert listening == {*hosts(on)}
        await run.until_ended()
    assert {output: found(here, output) for output in OUTPUTS} == expected(sizes)


# -- who reads what


@asynccontextmanager
async def lines_served(lines: Sequence[bytes]) -> AsyncIterator[tuple[str, list[int]]]:
    """An address that gives each who dials all lines, and how many did."""
    dialed: list[int] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        dialed.append(len(dialed))
        writer.writelines(lines)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        host, port = server.sockets[0].getsockname()[:2]
        yield f"{host}:{port}", dialed


async def test_a_source_that_cannot_be_divided_is_read_at_one_of_three_hosts(here: Path) -> None:
    """FT-LB-1: it is dialed once."""
    async with lines_served([b"%d\n" % number for number in range(500)]) as (address, dialed):
        numbers = numbers_query(3, f"type: TCP, address: '{address}'")
        async with asyncio.timeout(120), LocalRun(numbers, here / "state", here, NOW, hosts=hosts(3)) as run:
            await run.until_ended()
    assert dialed == [0]
    assert written(here) == Counter(range(500))


async def test_six_partitions_are_divided_over_three_hosts(here: Path) -> None:
    """FT-LB-2, FT-LB-4: two each, no one twice, all of them; the file at their end has all rows once."""
    for part in range(6):
        lines = "\n".join(map(str, range(100 * part, 100 * part + 100)))
        (here / f"part-{part}.csv").write_text(f"n\n{lines}\n", "utf-8")
    numbers = numbers_query(3, *(f"type: CSV, path: part-{part}.csv" for part in range(6)))
    read = [[feed.source.physical.reads for feed in feeds] for feeds in numbers.feeds]
    assert [len(each) for each in read] == [2, 2, 2]
    assert sorted(path for each in read for path in each) == [f"part-{part}.csv" for part in range(6)]
    async with asyncio.timeout(120), LocalRun(numbers, here / "state", here, NOW, hosts=hosts(3)) as run:
        await run.until_ended()
    assert written(here) == Counter(range(600))


async def test_rows_that_two_connectors_bring_are_counted_once(here: Path) -> None:
    """FT-LB-3: equal rows meet at one of three hosts, whichever read them: 500 and not 1000."""
    operators = """
    {"operators": [
      {"id": "numbers", "type": "source", "logical": "numbers"},
      {"id": "once", "type": "distinct", "input": "numbers"},
      {"id": "all", "type": "aggregate", "input": "once", "by": [], "aggregates": {"n": "count(*)"}},
      {"id": "out", "type": "sink", "input": "all", "sink": "out"}
    ]}
    """
    for part in range(2):
        (here / f"part-{part}.csv").write_text("n\n" + "\n".join(map(str, range(500))) + "\n", "utf-8")
    counting = numbers_query(3, *(f"type: CSV, path: part-{part}.csv" for part in range(2)), text=operators)
    async with asyncio.timeout(120), LocalRun(counting, here / "state", here, NOW, hosts=hosts(3)) as run:
        await run.until_ended()
    assert written(here) == Counter([500])


# -- who is killed


@pytest.mark.timeout(600)
async def test_a_consumer_sees_nothing_twice_though_members_are_killed_at_twenty_points(here: Path) -> None:
    """DBSP-OUT-7, DBSP-REQ-2: what it has read, step after step, is what an uninterrupted run gives."""
    sizes = Sizes(sources=2, rows=2000, rate=100)
    settings = TriggerSettings(checkpoint_s=0.2, tick_s=0.2)  # steps go on where the inputs have ended before
    circuit = query(sizes, 2)
    random = Random(20)
    async with asyncio.timeout(550), LocalRun(circuit, here / "state", here, settings) as run:
        await until_running(run)
        consuming = asyncio.create_task(_consume(here / "state", circuit, "rows", 2 * sizes.rows))
        for kill in range(20):
            done = run.coordinator.done

            async def progress(done: int = done) -> bool:
                return run.coordinator.done > done and run.coordinator.phase is Phase.RUNNING

            await until_async(progress, "a step is done")
            await asyncio.sleep(random.uniform(0, 0.05))
            process = run.members.process(kill % 2)
            assert process is not None
            os.kill(process, signal.SIGKILL)
        await run.until_ended()
        consumed = await consuming
    assert consumed == expected(sizes)["rows"]
    assert {output: found(here, output) for output in OUTPUTS} == expected(sizes)


async def _consume(state: Path, circuit: SteppedQuery, output: str, rows: int) -> Counter[tuple[str, ...]]:
    """So many rows of an output, from its first step on; no step comes twice."""
    home = circuit.plan.homes[output]
    async with Store.at(state / f"member-{home}") as store:
        log = await OutputLog.open(store, LOG, _outputs(circuit, home))
        found: Counter[tuple[str, ...]] = Counter()
        next_step = 0
        async for span in log.follow(output, 0):
            assert span.lower == next_step
            next_step = span.upper
            for _, batch in span.updates:
                for row in batch.to_pylist():
                    *values, weight = row.values()
                    found[tuple(map(str, values))] += weight
            if found.total() >= rows:
                break
    return found


def _outputs(circuit: SteppedQuery, home: int) -> Mapping[str, Any]:
    schemas = SteppedCircuit(circuit.plan, 0).outputs
    return {key: schema for key, schema in schemas.items() if circuit.plan.homes[key] == home}


@pytest.mark.timed
async def test_steps_go_on_soon_after_a_member_of_two_is_killed(here: Path, record_property: Any) -> None:
    """DBSP-REQ-2: it is named, and a step that was not done before is, within seconds (3 s where nothing else runs)."""
    sizes = Sizes(sources=2, rows=2000, rate=200)
    took = []
    async with asyncio.timeout(250), LocalRun(query(sizes, 2), here / "state", here, NOW) as run:
        await until_running(run)
        for member in (0, 1, 0):
            epoch = run.coordinator.epoch
            process = run.members.process(member)
            assert process is not None
            os.kill(process, signal.SIGKILL)
            began = time.monotonic()
            await until_running(run, epoch + 1)
            done = run.coordinator.done

            async def progress(done: int = done) -> bool:
                return run.coordinator.done > done + 1

            await until_async(progress, "a new step")
            took.append(time.monotonic() - began)
    record_property("recovery_s", took)
    assert max(took) < 30, took


async def test_a_member_that_dies_again_and_again_is_given_up_with_what_it_said(
    here: Path,
) -> None:
    numbers = numbers_query(2, "type: Generator, count: 100, rows_per_s: 1")
    run = LocalRun(numbers, here / "state", here, NOW)
    async with asyncio.timeout(250), run:

        async def kill() -> None:
            while True:
                if (process := run.members.process(1)) is not None:
                    with suppress(ProcessLookupError):  # it has ended, which is not known here yet
                        os.kill(process, signal.SIGKILL)
                await asyncio.sleep(0.01)

        killing = asyncio.create_task(kill())
        with pytest.raises(
            MembersEnd, match=r"member 1 has ended 5 times .* killed by SIGKILL\), without progress"
        ):
            await run.until_ended()
        killing.cancel()


# -- what a user is told


async def test_a_line_that_cannot_be_read_is_told_in_one_sentence_with_file_and_line(here: Path) -> None:
    (here / "numbers.csv").write_text("n\n1\n2\nthree\n", "utf-8")
    numbers = numbers_query(2, "type: CSV, path: numbers.csv")
    async with asyncio.timeout(120), LocalRun(numbers, here / "state", here, NOW) as run:
        with pytest.raises(
            MemberFailed, match=r"numbers\.csv, line 4, column n: 'three' is not a valid int64"
        ):
            await run.until_ended()
    assert not (here / "out.csv").exists()
    (here / "numbers.csv").write_text("n\n1\n2\n3\n", "utf-8")
    async with asyncio.timeout(120), LocalRun(numbers, here / "state", here, NOW) as run:
        await run.until_ended()
    assert written(here) == Counter([1, 2, 3])


async def test_a_sink_that_cannot_be_written_is_told_before_any_work(here: Path) -> None:
    (here / "out.csv").mkdir()
    run = LocalRun(numbers_query(2, "type: Generator, count: 10"), here / "state", here, NOW)
    with pytest.raises(OutputError, match=r"out\.csv cannot be written: it is a directory"):
        await run.__aenter__()
    assert not (here / "state" / "member-1").exists()
    assert not (here / "state" / "coordinator").exists()


async def test_a_store_that_another_process_has_open_is_waited_for(here: Path) -> None:
    """As a process of the member before may, for a while; epochs do not follow one another as fast as they can."""
    numbers = numbers_query(2, "type: Generator, count: 10")
    ended: list[ev.ClaimEpoch] = []
    observe = lambda order: ended.append(order) if isinstance(order, ev.ClaimEpoch) else None  # noqa: E731 - short
    (here / "state").mkdir()
    (here / "state" / CLAIM).write_bytes(numbers.claim(generation=0))
    async with asyncio.timeout(120), Store.at(here / "state" / "member-1") as store:
        database = await store.state_store(LOG).open(0)
        async with LocalRun(numbers, here / "state", here, NOW, observe=observe) as run:

            async def has_tried() -> bool:
                return len(ended) >= 5

            began = time.monotonic()
            await until_async(has_tried, "five epochs are over")
            assert time.monotonic() - began > 0.05 + 0.2
            assert {"is open already, by process" in each.why for each in ended} == {True}
            database.close()
            await run.until_ended()
    assert written(here) == Counter(range(10))
