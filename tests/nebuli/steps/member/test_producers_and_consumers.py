"""What producers and consumers of a circuit may rely on: rows DBSP-REQ-6 to DBSP-REQ-11, and DBSP-DIST-3."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

import pyarrow as pa
import pytest

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.zset import weighted
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.member_store import LOG
from nebuli.store import Store
from placement import check_stepped, distribute
from tests.support.documents import op
from tests.support.documents import query as query_of
from tests.support.seeds import drawn_seed
from tests.support.starter import start_program
from tests.support.stepping import run_alone
from tests.support.stores import SCHEMA, weights
from tests.support.told_members import (
    TOPOLOGY,
    Members,
    numbers,
    pushed_query,
    rows,
    until_out,
    until_running,
)

pytestmark = [pytest.mark.processes, pytest.mark.long]


async def test_five_producers_push_into_three_handles_at_once(tmp_path: Path) -> None:
    """DBSP-REQ-6: what comes out is the union of what all of them sent, to whichever member."""
    query = pushed_query(2, "abc", spread="abc")
    async with Members(query, tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)

        async def produce(producer: int) -> Counter[int]:
            random = Random(producer)
            sent: Counter[int] = Counter()
            for batch in range(12):
                member, handle = producer % 2, random.choice("abc")
                mine = range(
                    10_000 * producer + 100 * batch, 10_000 * producer + 100 * batch + random.randrange(50)
                )
                found = rows(circuit.members[member].inputs[handle], mine)
                await circuit.push(member, found, handle=handle, producer=f"p{producer}")
                sent += Counter(mine)
            return sent

        sent = await asyncio.gather(*map(produce, range(5)))
        await until_out(circuit, sum(sent, Counter[int]()))


@pytest.mark.parametrize("sizes", [[0, 1, 10_000], [10_000, 0, 1, 0, 1], [1] * 20])
async def test_batches_may_have_any_number_of_rows(tmp_path: Path, sizes: list[int]) -> None:
    """DBSP-REQ-7: none, one, ten thousand."""
    async with Members(pushed_query(2), tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        pushed = 0
        for size in sizes:
            await circuit.push_numbers(0, range(pushed, pushed + size))
            pushed += size
        await until_out(circuit, Counter(range(pushed)))


async def test_rows_may_be_wide_or_narrow(tmp_path: Path) -> None:
    """DBSP-REQ-7: of 300 columns, of one with a text of a million characters, of one number."""
    schemas = {
        "wide": weighted(pa.schema([(f"c{number}", pa.int64()) for number in range(300)])),
        "long": weighted(pa.schema([("text", pa.string())])),
        "narrow": weighted(pa.schema([("n", pa.int8())])),
    }
    given = {
        "wide": pa.record_batch([*[[number, None] for number in range(300)], [1, 1]], schema=schemas["wide"]),
        "long": pa.record_batch([["x" * 1_000_000, ""], [1, -1]], schema=schemas["long"]),
        "narrow": pa.record_batch([[7], [3]], schema=schemas["narrow"]),
    }
    async with Store.at(tmp_path) as store:
        async with await InputLog.open(store, "m", schemas) as log:
            for number, (handle, batch) in enumerate(given.items()):
                await log.push(handle, batch, producer="p", sequence=number)
            found = await log.fix(0)
        assert {handle: sorted(map(str, batch.to_pylist())) for handle, batch in found.items()} == {
            handle: sorted(map(str, batch.to_pylist())) for handle, batch in given.items()
        }


_TAKING = """
import asyncio, sys
from nebuli.store import Store
from nebuli.steps.logs.input_log import InputLog
from tests.support.stores import SCHEMA, zset

async def take(folder, first):
    async with Store.at(folder) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
        for number in range(first, first + 200):
            await log.push("a", zset(*((each, 1) for each in range(10 * number, 10 * number + 10))),
                           producer="p", sequence=number)
            print(number, flush=True)
            if number % 3 == 0:
                await log.fix(log.last)

asyncio.run(take(sys.argv[1], int(sys.argv[2])))
"""


def killed(folder: Path, first: int, after: int) -> int:
    """Have rows sent from a number on, to a process that is killed when it has said so much; which number is next."""
    process = start_program(_TAKING, folder, first)
    with process.stdout:
        said = [process.stdout.readline() for _ in range(after)]
        process.kill()
        said += process.stdout.readlines()  # what it had said before
    process.wait()
    return int([line for line in said if line.endswith(b"\n")][-1]) + 1


async def test_what_was_not_acknowledged_is_sent_again_under_its_number_and_counts_once(
    tmp_path: Path,
) -> None:
    """DBSP-REQ-8: whoever takes it is killed eight times, at random, before it said that it has it, or after."""
    acknowledged = 0  # the first number that is not
    with drawn_seed() as seed:
        random = Random(seed)
        for _ in range(8):
            acknowledged = killed(tmp_path, acknowledged, random.randrange(1, 15))
        async with Store.at(tmp_path) as store, await InputLog.open(store, "m", {"a": SCHEMA}) as log:
            logged = log.next_sequence("p")
            assert acknowledged <= logged <= acknowledged + 1
            await log.fix(log.last)
            steps = [weights([(await log.fix(step))["a"]]) for step in range(log.last)]
    counted: Counter[int] = Counter()
    for step in steps:
        counted.update(step)
    assert counted == Counter(range(10 * logged))


async def test_consumers_read_one_history_from_wherever_they_are(tmp_path: Path) -> None:
    """DBSP-REQ-9, DBSP-REQ-10: three of them, at other steps; who comes back with a step gets it and what follows."""
    async with Members(pushed_query(2), tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        for number in range(20):
            await circuit.push_numbers(0, range(5 * number, 5 * number + 5))
            await until_out(circuit, Counter(range(5 * number + 5)))
        history = [numbers(each) for each in await circuit.output()]
        assert sum(history, Counter[int]()) == Counter(range(100))
        steps = len(history)
        async with Store.at(circuit.store(circuit.query.plan.homes["rows"])) as store:
            log = await OutputLog.open(store, LOG, circuit.own_outputs("rows"))

            async def consume(first: int, until: int) -> list[tuple[int, Counter[int]]]:
                found: list[tuple[int, Counter[int]]] = []
                async for span in log.follow("rows", first):
                    assert span.lower >= first
                    found += [(at, numbers(each)) for at, each in span.updates if first <= at < until]
                    if span.upper >= until:
                        break
                return found

            async with asyncio.timeout(60):
                everything = await asyncio.gather(
                    *(consume(first, steps) for first in (0, steps // 2, steps - 1))
                )
                for first, found in zip((0, steps // 2, steps - 1), everything, strict=True):
                    assert [each for each in found if each[1]] == [
                        (at, each) for at, each in enumerate(history) if at >= first and each
                    ]
                left_at = steps // 3
                before, after = await consume(0, left_at), await consume(left_at, steps)
                assert [each for each in before + after if each[1]] == [
                    each for each in everything[0] if each[1]
                ]


async def test_the_offsets_of_a_step_say_what_its_output_came_from(tmp_path: Path) -> None:
    """DBSP-REQ-11: what arrived in that range, in a circuit with the state before, gives the same output again."""
    query = pushed_query(1, "ab")
    async with Members(query, tmp_path) as circuit:
        async with circuit.coordinated() as coordinator:
            await until_running(coordinator)
            for number in range(15):
                await circuit.push_numbers(0, range(5 * number, 5 * number + 5), handle="ab"[number % 2])
            await until_out(circuit, Counter(range(75)))
        log, (again,) = circuit.members[0].log, [SteppedCircuit(query.plan, 0)]
        outputs = {name: await circuit.output(name) for name in ("rows", "sums")}
        async with Store.at(circuit.store(0)) as store:
            shards = {handle: await store.open_shard(f"{LOG}/input/{handle}") for handle in "ab"}
            upper = dict.fromkeys("ab", 0)
            for step in range(log.last):
                inputs = {}
                for handle, (first, until) in (await log.offsets(step)).items():
                    assert first == upper[handle], "ranges of steps follow one another"
                    upper[handle] = until
                    inputs[handle] = [each for _, each in await shards[handle].read(first, until)]
                (made,) = run_alone([again], [inputs])
                for name, logged in outputs.items():
                    assert counted_rows(made[name]) == counted_rows(logged[step])
            assert sum(upper.values()) == 15


def counted_rows(batch: pa.RecordBatch) -> Counter[tuple[object, ...]]:
    return Counter(tuple(row.values()) for row in batch.to_pylist())


@pytest.mark.parametrize("members", [2, 3, 4, 8, 16])
def test_a_hundred_thousand_rows_are_spread_evenly(members: int) -> None:
    """DBSP-DIST-3: by the hash of their key; the fullest member has at most 1.2 times what the emptiest has."""
    operators = (
        op("source", "a", logical="a"),
        op("aggregate", "g", input="a", by=["n"], aggregates={"rows": "count(*)"}),
        op("sink", "sums", input="g", sink="sums"),
    )
    plan = distribute(check_stepped(query_of(*operators), TOPOLOGY), members, {"a"})
    circuits = [SteppedCircuit(plan, member) for member in range(members)]
    given = rows(circuits[0].inputs["a"], range(100_000))
    run_alone(circuits, [{"a": given}, *[{}] * (members - 1)])
    found = [circuit.statistics()["g"].rows_in for circuit in circuits]
    assert sum(found) == 100_000
    assert max(found) / min(found) <= 1.2
