"""Rows that a circuit cannot compute with: refused at the push, or else a sentence, a reason, and a way on."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from nebuli.circuits import Circuit
from nebuli.circuits.errors import CircuitFailed, WrongRows
from tests.nebuli.circuits.conftest import batch, zset
from tests.support.commands import Command, Ended, nebuli
from tests.support.ports import free_addresses

pytestmark = [pytest.mark.processes, pytest.mark.long]

TOPOLOGY = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27900
    sinks:
      - {name: small, type: CSV, path: small.csv}
      - {name: rows, type: CSV, path: rows.csv}
      - {name: grown, type: CSV, path: grown.csv, mode: append}
"""
QUERY = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "more", "type": "source", "logical": "sales"},
  {"id": "by-shop", "type": "aggregate", "input": "sales", "by": ["shop"], "aggregates": {"amount": "sum(amount)"}},
  {"id": "sums", "type": "project", "input": "by-shop",
   "columns": {"shop": "shop", "amount": "CAST(amount AS SMALLINT)"}},
  {"id": "small", "type": "sink", "input": "sums", "sink": "small"},
  {"id": "rows", "type": "sink", "input": "sales", "sink": "rows"},
  {"id": "grown", "type": "sink", "input": "more", "sink": "grown"}
]}
"""


@pytest.fixture
def options(tmp_path: Path) -> list[str | Path]:
    """Of the run, but for where it is served."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    (tmp_path / "query.json").write_text(QUERY, "utf-8")
    return [
        *("run", tmp_path / "topology.yaml", tmp_path / "query.json", "--json"),
        *("--stepped", "--state", tmp_path / "state"),
    ]


@pytest.mark.story
async def test_a_query_goes_on_without_the_step_that_it_cannot_compute(
    options: list[str | Path], tmp_path: Path
) -> None:
    """The producer gets the reason, the command a sentence; the rows are in a file, and the state is kept."""
    address, http = free_addresses(2)
    command = Command(*options, "--serve", address, "--http", http, directory=tmp_path)
    await asyncio.to_thread(command.wait_until_said, "running")
    async with (
        asyncio.timeout(60),
        Circuit(address, deadline_s=30.0) as circuit,
        httpx.AsyncClient(base_url=f"http://{http}", trust_env=False, timeout=60) as client,
    ):
        await circuit.push("sales", batch(("a", 1)), producer="p", sequence=0)
        followed = asyncio.create_task(client.get("/output_endpoint/small?follow=true"))
        await anext(circuit.output("small", 0))
        with pytest.raises(WrongRows, match="operator grown: a row is retracted"):
            await circuit.push("more", zset(("a", 1, -1)), producer="q", sequence=0)
        step = await circuit.push("sales", batch(("a", 40_000)), producer="p", sequence=1)
        with pytest.raises(
            CircuitFailed, match=f"step {step} of input sales cannot be computed: operator sums"
        ):
            async for _ in circuit.output("small", step):
                pass
        with pytest.raises(CircuitFailed, match=f"--skip-step {step}"):
            await circuit.status()
        row = {"content": '{"shop": "a", "amount": 1}', "headers": {"Content-Type": "application/x-ndjson"}}
        pushed = await client.post("/input_endpoint/sales?producer=r&sequence=0", **row)
        assert (pushed.status_code, pushed.json()["error"]) == (503, "circuit_failed")
        said = [pushed.json()["what"], json.loads((await followed).text.splitlines()[-1])["what"]]
        assert all(f"step {step} of input sales cannot be computed: operator sums" in each for each in said)
    ended = await asyncio.to_thread(command.end)
    assert ended.exit_code == 2
    assert f"step {step} of input sales cannot be computed: operator sums" in ended.error
    assert "Traceback" not in ended.stderr

    again = Command(*options, "--serve", address, "--skip-step", str(step), directory=tmp_path)
    await asyncio.to_thread(again.wait_until_said, "running")
    async with asyncio.timeout(60), Circuit(address, deadline_s=30.0) as circuit:
        assert await circuit.next_sequence("sales", "p") == 2
        await circuit.push("sales", batch(("a", 4)), producer="p", sequence=2)
        await circuit.shut_down()
    ended = await asyncio.to_thread(again.end)
    file = tmp_path / "state" / f"skipped-{step}-sales.arrow"
    assert ended.exit_code == 0, ended.stderr
    assert f"step {step} skips 1 row of input sales" in ended.stderr
    assert json.loads(ended.stdout)["skipped_rows"] == [
        {"step": step, "input": "sales", "rows": 1, "file": str(file), "outputs": [], "unfit": False}
    ]
    assert (tmp_path / "small.csv").read_text("utf-8").splitlines() == ['"shop","amount"', '"a",5']
    with pa.ipc.open_file(file) as rows:
        assert rows.read_all().column("amount").to_pylist() == [40_000]


JOINED = """
{"operators": [
  {"id": "sales", "type": "source", "logical": "sales"},
  {"id": "more", "type": "source", "logical": "sales"},
  {"id": "renamed", "type": "project", "input": "more", "columns": {"shop": "shop", "other": "amount"}},
  {"id": "both", "type": "join", "inputs": ["sales", "renamed"], "on": ["shop"]},
  {"id": "grown", "type": "sink", "input": "both", "sink": "grown"}
]}
"""


@pytest.mark.parametrize("members", ["1", "2"])
async def test_a_row_that_a_join_takes_back_from_a_sink_that_appends_is_left_out(
    options: list[str | Path], members: str, tmp_path: Path
) -> None:
    """The step fails before an output has it, so that it can be left out; the sink goes on with its file."""
    (tmp_path / "query.json").write_text(JOINED, "utf-8")
    (address,) = free_addresses(1)
    options = [*options, "--serve", address, "--members", members]
    command = Command(*options, directory=tmp_path)
    await asyncio.to_thread(command.wait_until_said, "running")
    async with asyncio.timeout(60), Circuit(address, deadline_s=30.0) as circuit:
        await circuit.push("sales", batch(("a", 1), ("b", 2)), producer="p", sequence=0)
        await circuit.push("more", batch(("a", 5), ("b", 6)), producer="p", sequence=0)
        async for _, rows in circuit.output("grown", 0):
            if rows.num_rows:
                break
        await circuit.push("more", zset(("a", 5, -1)), producer="p", sequence=1)
        with pytest.raises(CircuitFailed, match="operator grown: a row is retracted") as failed:
            async for _ in circuit.output("grown", 0):
                pass
        said = re.search(r"step (\d+) of inputs more, sales .*--skip-step \1", str(failed.value))
        assert said, failed.value
    ended = await asyncio.to_thread(command.end)
    assert ended.exit_code == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    again = Command(*options, "--skip-step", said[1], directory=tmp_path)
    await asyncio.to_thread(again.wait_until_said, "running")
    async with asyncio.timeout(60), Circuit(address, deadline_s=30.0) as circuit:
        await circuit.push("more", batch(("a", 7)), producer="p", sequence=2)
        await circuit.shut_down()
    ended = await asyncio.to_thread(again.end)
    assert ended.exit_code == 0, ended.stderr
    assert f"step {said[1]} skips 1 row of input more" in ended.stderr
    header, *rows = (tmp_path / "grown.csv").read_text("utf-8").splitlines()
    assert (header, sorted(rows)) == ('"shop","amount","other"', ['"a",1,5', '"a",1,7', '"b",2,6'])


async def test_a_row_taken_back_too_often_is_a_sentence_and_can_be_given_again(
    options: list[str | Path], tmp_path: Path
) -> None:
    (address,) = free_addresses(1)
    for sequence, weight, code in ((0, -2, 2), (1, 3, 0)):
        command = Command(*options, "--serve", address, directory=tmp_path)
        await asyncio.to_thread(command.wait_until_said, "running")
        async with asyncio.timeout(60), Circuit(address, deadline_s=30.0) as circuit:
            await circuit.push("sales", zset(("a", 1, weight)), producer="p", sequence=sequence)
            await circuit.shut_down()
        ended = await asyncio.to_thread(command.end)
        assert ended.exit_code == code, ended.stderr
        assert "Traceback" not in ended.stderr
        if code:
            assert "output rows (CSV in mode final) cannot be written: the row" in ended.error
            assert "was retracted 2 times more often than it was added" in ended.error
    assert (tmp_path / "rows.csv").read_text("utf-8").splitlines() == ['"shop","amount"', '"a",1']


def test_a_step_is_left_out_in_steps_only(options: list[str | Path], tmp_path: Path) -> None:
    ended = nebuli(*options[:3], "--skip-step", "3", directory=tmp_path)
    assert ended.exit_code == 2
    assert "--skip-step " in ended.error
    assert "add --stepped" in ended.error


TOTALS = """
logical:
  - {name: sales, schema: [{name: shop, type: string}, {name: amount, type: int64}]}
nodes:
  - address: 127.0.0.1:27541
    sinks:
      - {name: totals, type: CSV, path: totals.csv}
      - {name: rows, type: CSV, path: rows.csv, mode: append}
"""
SUMS = [
    {"id": "sales", "type": "source", "logical": "sales"},
    {
        "id": "by-shop",
        "type": "aggregate",
        "input": "sales",
        "by": ["shop"],
        "aggregates": {"amount": "sum(amount)"},
    },
    {"id": "totals", "type": "sink", "input": "by-shop", "sink": "totals"},
]
ROWS = {"id": "rows", "type": "sink", "input": "sales", "sink": "rows"}
BIGGEST = 2**63 - 1


class Sales:
    """Rows of shops, pushed, and their sums in a file."""

    def __init__(self, directory: Path, *more: dict[str, str]) -> None:
        (directory / "topology.yaml").write_text(TOTALS, "utf-8")
        (directory / "query.json").write_text(json.dumps({"operators": [*SUMS, *more]}), "utf-8")
        self._directory = directory
        (self._address,) = free_addresses(1)

    async def run(self, *pushes: pa.RecordBatch, refused: pa.RecordBatch | None = None) -> Ended:
        """Serve it, push, and shut it down; after each push it answers."""
        command = Command(
            *(
                "run",
                self._directory / "topology.yaml",
                self._directory / "query.json",
                "--stepped",
                "--json",
            ),
            *("--state", self._directory / "state", "--serve", self._address, "--checkpoint-every", "0.5"),
            directory=self._directory,
        )
        await asyncio.to_thread(command.wait_until_said, "running")
        async with asyncio.timeout(60), Circuit(self._address, deadline_s=30.0) as circuit:
            number = await circuit.next_sequence("sales", "x")
            for rows in pushes:
                await circuit.push("sales", rows, producer="x", sequence=number)
                number += 1
            if refused is not None:
                with pytest.raises(WrongRows, match="operator rows: a row is retracted"):
                    await circuit.push("sales", refused, producer="x", sequence=number)
            await circuit.status()
            await circuit.shut_down()
        return await asyncio.to_thread(command.end)

    def lines(self, name: str) -> list[str]:
        """The rows of a file."""
        return sorted((self._directory / name).read_text("utf-8").splitlines()[1:])


async def test_a_row_that_a_sink_in_mode_append_would_take_back_is_refused_and_the_query_continues(
    tmp_path: Path,
) -> None:
    sales = Sales(tmp_path, ROWS)
    ended = await sales.run(*[batch(("a", 1))] * 5, refused=zset(("a", 1, -1)))
    assert ended.exit_code == 0, ended.stderr
    assert (sales.lines("totals.csv"), sales.lines("rows.csv")) == (['"a",5'], ['"a",1'] * 5)
    ended = await sales.run(batch(("a", 2)))
    assert ended.exit_code == 0, ended.stderr
    assert (sales.lines("totals.csv"), sales.lines("rows.csv")) == (['"a",7'], [*['"a",1'] * 5, '"a",2'])


async def test_a_sum_beyond_its_range_ends_no_query_and_may_come_back_in_a_later_run(tmp_path: Path) -> None:
    """A run that ends meanwhile leaves the file as it was, and says what to do."""
    sales = Sales(tmp_path)
    (tmp_path / "totals.csv").write_text("before\n", "utf-8")
    ended = await sales.run(*[batch(("a", 1))] * 5, batch(("a", BIGGEST)), batch(("b", 7)))
    assert ended.exit_code == 2, ended.stderr
    assert f"the sum {BIGGEST + 5} is beyond the range of int64" in ended.error
    assert "push them (--serve), for example with negative weights" in ended.error
    assert (tmp_path / "totals.csv").read_text("utf-8") == "before\n"
    ended = await sales.run(zset(*[("a", 1, -1)] * 5))
    assert ended.exit_code == 0, ended.stderr
    assert sales.lines("totals.csv") == [f'"a",{BIGGEST}', '"b",7']
