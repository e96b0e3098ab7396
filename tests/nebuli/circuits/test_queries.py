"""Queries over a running circuit: at one step of all its members, whatever goes on meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter

import pyarrow as pa
import pytest

from nebuli.circuits import Circuit, ContentsUnknown, WrongQuery
from nebuli.steps.protocol.triggers import TriggerSettings
from tests.nebuli.circuits.conftest import Serve, batch, read_until, totals, zset

pytestmark = pytest.mark.processes
SHOPS = [f"shop-{number}" for number in range(7)]


async def pushed_by_many(circuit: Circuit, rounds: int) -> Counter[tuple[object, ...]]:
    """Rows of several producers, which are at several members."""
    rows: Counter[tuple[object, ...]] = Counter()
    for sequence in range(rounds):
        for number, handle in enumerate("abc"):
            for producer in range(3):
                row = (SHOPS[(sequence + number) % 7], sequence * 100 + producer)
                await circuit.push(handle, batch(row), producer=f"p{producer}", sequence=sequence)
                rows[row] += 1
    return rows


@pytest.mark.story
async def test_a_query_sees_all_members_at_one_step(serve: Serve) -> None:
    """FT-API-3: count(*) is the sum over members, at one step that all outputs and materialized inputs share."""
    async with serve(members=3) as served, Circuit(served.address) as circuit:
        rows = await pushed_by_many(circuit, 4)
        await read_until(circuit, "rows", rows)
        before = (await circuit.status()).next_step
        step, found = await circuit.query("SELECT count(*) AS n, sum(amount)::BIGINT AS amount FROM rows")
        assert found.to_pylist() == [
            {"n": 36, "amount": sum(amount * n for (_, amount), n in rows.items())}  # type: ignore[operator]
        ]
        assert before <= step <= (await circuit.status()).next_step
        _, each = await circuit.query("SELECT shop, sales, amount FROM totals ORDER BY shop")
        assert Counter(tuple(row.values()) for row in each.to_pylist()) == totals(rows)
        _, inputs = await circuit.query("SELECT (SELECT count(*) FROM a) a, (SELECT count(*) FROM b) b")
        assert inputs.to_pylist() == [{"a": 12, "b": 12}]


async def test_queries_beside_steps_never_see_a_part_of_one(serve: Serve) -> None:
    """What one table says is what the others say, in every answer, while rows come all the time."""
    sql = """
        SELECT (SELECT count(*) FROM rows) AS rows, (SELECT coalesce(sum(sales), 0)::BIGINT FROM totals) AS sales,
               (SELECT count(*) FROM a) + (SELECT count(*) FROM b) + (SELECT count(*) FROM c) AS inputs
    """
    settings = TriggerSettings(checkpoint_s=0.3)
    async with serve(members=3, settings=settings) as served, Circuit(served.address) as circuit:
        pushing = asyncio.create_task(pushed_by_many(circuit, 25))
        answers: dict[int, dict[str, int]] = {}
        while not pushing.done():
            step, found = await circuit.query(sql)
            (answer,) = found.to_pylist()
            assert answer["rows"] == answer["sales"] == answer["inputs"]
            assert answers.setdefault(step, answer) == answer
        await read_until(circuit, "rows", await pushing)
        _, last = await circuit.query(sql)
        assert last.to_pylist() == [{"rows": 225, "sales": 225, "inputs": 225}]
        assert len(answers) > 3, "several steps were seen"


async def test_weights(serve: Serve) -> None:
    """A row of weight 2 is there twice; one that was taken back is not; one taken back too often is said."""
    async with serve() as served, Circuit(served.address) as circuit:
        await circuit.push("a", zset(("x", 1, 2), ("y", 2, 1)), producer="p", sequence=0)
        await circuit.push("b", zset(("y", 2, -1), ("z", 3, 1)), producer="q", sequence=0)
        await read_until(circuit, "rows", Counter({("x", 1): 2, ("z", 3): 1}))
        _, found = await circuit.query("SELECT shop, amount FROM rows ORDER BY ALL")
        assert found.to_pylist() == [
            {"shop": "x", "amount": 1},
            {"shop": "x", "amount": 1},
            {"shop": "z", "amount": 3},
        ]
        with pytest.raises(ContentsUnknown, match=r"^b has .*'y'.* weight of -1: "):
            await circuit.query("SELECT * FROM b")


async def test_an_input_is_netted_over_members(serve: Serve) -> None:
    """One producer gives a row at one member, another takes it back at another one."""
    async with serve(members=3) as served, Circuit(served.address) as circuit:
        await circuit.push("a", batch(("x", 1), ("y", 2)), producer="p0", sequence=0)
        for number in range(1, 9):  # at all members
            await circuit.push(
                "a", zset(("x", 1, -1 if number % 2 else 1)), producer=f"p{number}", sequence=0
            )
        await circuit.push("a", batch(("z", 3)), producer="last", sequence=0)  # without it, it was so before
        await read_until(circuit, "rows", Counter({("x", 1): 1, ("y", 2): 1, ("z", 3): 1}))
        _, found = await circuit.query("SELECT * FROM a ORDER BY shop")
        assert [tuple(row.values()) for row in found.to_pylist()] == [("x", 1), ("y", 2), ("z", 3)]


async def test_contents_survive_members_and_runs(serve: Serve) -> None:
    """After a kill, and in the next run from the same state, as they come with checkpoints and replay."""
    async with serve() as served, Circuit(served.address) as circuit:
        rows = await pushed_by_many(circuit, 2)
        await read_until(circuit, "rows", rows)
        await circuit.checkpoint()
        await circuit.push("a", batch(("later", 1)), producer="z", sequence=0)
        rows["later", 1] += 1
        await read_until(circuit, "rows", rows)
        served.kill(1)
        _, found = await circuit.query(
            "SELECT count(*) n, (SELECT sum(sales)::BIGINT FROM totals) s FROM rows"
        )
        assert found.to_pylist() == [{"n": 19, "s": 19}]
    async with serve() as served, Circuit(served.address) as circuit:
        _, found = await circuit.query("SELECT count(*) n, (SELECT count(*) FROM a) a FROM rows")
        assert found.to_pylist() == [{"n": 19, "a": 7}]


async def test_what_is_wrong_is_said_with_its_place(serve: Serve) -> None:
    """With DuckDB's words, and the tables that there are."""
    async with serve() as served, Circuit(served.address) as circuit:
        with pytest.raises(
            WrongQuery, match=r'column "nope" not found(.|\n)*LINE 1: SELECT nope FROM rows\n *\^'
        ):
            await circuit.query("SELECT nope FROM rows")
        with pytest.raises(WrongQuery, match=r"The tables here are a, b, c, rows, totals"):
            await circuit.query("SELECT * FROM nothing")
        with pytest.raises(WrongQuery, match=r"kind INSERT"):
            await circuit.query("INSERT INTO rows VALUES ('x', 1)")
        step, found = await circuit.query("SELECT 1 AS one")
        assert (step, found) == (0, pa.table({"one": pa.array([1], pa.int32())}))


async def test_contents_go_along_to_another_number_of_members(serve: Serve) -> None:
    """An output's to its new member, an input's anywhere; and queries go on meanwhile."""
    async with serve(members=2) as served, Circuit(served.address) as circuit:
        rows = await pushed_by_many(circuit, 3)
        await read_until(circuit, "rows", rows)
        sql = "SELECT (SELECT count(*) FROM a) a, (SELECT count(*) FROM rows) r, sum(sales)::BIGINT s FROM totals"
        for members in (3, 1):
            asking = asyncio.create_task(circuit.query(sql))
            await circuit.scale(members)
            expected = [{"a": 9, "r": 27, "s": 27}]
            assert (await asking)[1].to_pylist() == expected
            assert (await circuit.query(sql))[1].to_pylist() == expected
        await circuit.push("a", zset((SHOPS[0], 0, -1)), producer="late", sequence=0)
        rows[SHOPS[0], 0] -= 1
        async with asyncio.timeout(30):
            while (await circuit.query(sql))[1].to_pylist() != [{"a": 8, "r": 26, "s": 26}]:
                pass
