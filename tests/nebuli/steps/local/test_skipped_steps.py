"""Rows that no step can be computed with, logged already: left out of their step, at all members, for good."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from nebuli.steps.errors import StepNotSkipped, WindowsWritten, failed_step_in
from nebuli.steps.local.skipped_steps import SkippedRows, SkippedSteps
from nebuli.steps.member.inputs.step_inputs import LeftOut
from nebuli.steps.protocol.errors import MemberFailed
from nebuli.steps.stepped_query import SteppedQuery
from nebuli.store.notes import Notes
from placement import check_stepped
from tests.support.commands import nebuli
from tests.support.documents import op
from tests.support.documents import query as query_of
from tests.support.told_members import TOPOLOGY, Members, pushed_query, until_running
from tests.support.waiting import until_async
from topology import parse_topology

pytestmark = [pytest.mark.processes, pytest.mark.long]
SUMS: Any = op("aggregate", "g", input="a", by=["k"], aggregates={"n": "sum(n)"})
AFTER_SUMS = {
    "a cast": [op("project", "p", input="g", columns={"n": "CAST(n AS SMALLINT)", "k": "k"})],
    "a division": [op("project", "p", input="g", columns={"n": "100 // (n - 40008)", "k": "k"})],
    "a filter": [op("filter", "p", input="g", predicate="100 // (n - 40008) < 0")],
}


def summed(members: int, operators: list[Any]) -> SteppedQuery:
    """What an operator makes of sums."""
    query = query_of(
        op("source", "a", logical="a"), SUMS, *operators, op("sink", "rows", input="p", sink="rows")
    )
    return SteppedQuery.divided(check_stepped(query, TOPOLOGY), members, {"a": ()}, frozenset("a"))


def places(circuit: Members) -> list[Path]:
    return [circuit.store(member) for member in range(circuit.count)]


@pytest.mark.parametrize("saved", [False, True], ids=["without a checkpoint", "behind one"])
@pytest.mark.parametrize(
    ("after_sums", "members"), [("a cast", 1), ("a cast", 2), ("a division", 1), ("a filter", 2)]
)
async def test_a_step_that_cannot_be_computed_is_left_out_at_all_members_and_stays_so(
    after_sums: str, members: int, saved: bool, tmp_path: Path
) -> None:
    query = summed(members, AFTER_SUMS[after_sums])
    steps = SkippedSteps(Notes(tmp_path), tmp_path)
    async with Members(query, tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        await circuit.push_numbers(members - 1, [1])
        before = await made(circuit, 1)
        if saved:
            await coordinator.checkpoint()
        await circuit.push_numbers(0, [40_008])
        with pytest.raises(MemberFailed, match="of input a cannot be computed: operator p: ") as failed:
            await coordinator.running  # type: ignore[attr-defined]
        bad = len(before)
        assert f"--skip-step {bad} " in str(failed.value)
        assert failed.value.of_input
    with pytest.raises(StepNotSkipped, match=f"ends below step {bad + 1}"):
        await steps.add([bad, bad + 1], query, places(circuit))
    error = (
        f"last checkpoint is at step {bad}" if saved else "it was computed, and its output may have been read"
    )
    with pytest.raises(StepNotSkipped, match=error):
        await steps.add([bad - 1], query, places(circuit))
    assert await steps.known() == []
    left_out = await steps.add([bad], query, places(circuit))
    assert left_out == [SkippedRows(bad, "a", 1, str(tmp_path / f"skipped-{bad}-a.arrow"), [])]
    with pa.ipc.open_file(left_out[0].file) as file:
        assert file.read_all().to_pylist() == [{"n": 40_008, "k": 8, "_weight": 1}]
    for last in (2, 3):  # a later run is told of it by the state
        circuit = Members(query, tmp_path, left_out=[each.rule for each in await steps.known()])
        async with circuit, circuit.coordinated() as coordinator:
            await until_running(coordinator)
            await circuit.push_numbers(0, [last])
            found = await made(circuit, bad + last)
        assert found[:bad] == before
        assert not found[bad].num_rows
    assert await steps.add([bad], query, places(circuit)) == left_out


async def made(circuit: Members, steps: int) -> list[pa.RecordBatch]:
    """The output's steps, once there are so many."""

    async def there() -> list[pa.RecordBatch] | None:
        found = await circuit.output()
        return found if len(found) >= steps else None

    found = await until_async(there, f"{steps} steps")
    assert found is not None
    return found


async def test_a_step_without_rows_is_not_left_out(tmp_path: Path) -> None:
    query = summed(1, AFTER_SUMS["a cast"])
    async with Members(query, tmp_path) as circuit:
        await circuit.members[0].log.fix(0)
    with pytest.raises(StepNotSkipped, match="--skip-step 0: it has no rows"):
        await SkippedSteps(Notes(tmp_path), tmp_path).add([0], query, places(circuit))


async def test_outputs_that_have_the_step_are_named(tmp_path: Path) -> None:
    """A member may have written its output where another one cannot compute the step; if all have, nobody failed."""
    query = pushed_query(2)
    steps = SkippedSteps(Notes(tmp_path), tmp_path)
    homes = query.plan.homes
    assert homes["rows"] != homes["sums"]

    async def write(output: str) -> None:
        async with Members(query, tmp_path) as circuit:
            log = circuit.members[homes[output]].outputs
            assert log is not None
            schema = log.schemas[output]
            await log.write(0, {output: pa.RecordBatch.from_arrays([[1]] * len(schema), schema=schema)})

    async with Members(query, tmp_path) as circuit:
        await circuit.push_numbers(homes["a"], [1])
        await circuit.members[homes["a"]].log.fix(0)
    await write("rows")
    (left_out,) = await steps.add([0], query, places(circuit))
    assert (left_out.rows, left_out.outputs) == (1, ["rows"])
    kept = Members(query, tmp_path / "kept", left_out=[LeftOut(0, "a")])
    shutil.copytree(tmp_path, kept.folder, ignore=shutil.ignore_patterns("kept"))
    async with kept, kept.coordinated() as coordinator:  # what was written stays, and the query continues
        await until_running(coordinator)
        await kept.push_numbers(homes["a"], [2])
        found = await made(kept, 2)
    assert [batch.num_rows for batch in found] == [1, 1]
    await write("sums")
    with pytest.raises(StepNotSkipped, match="it was computed"):
        await SkippedSteps(Notes(tmp_path / "other"), tmp_path).add([0], query, places(circuit))


VISITS = parse_topology(
    """
logical:
  - {name: visits, schema: [{name: n, type: int64}, {name: at, type: timestamp}]}
nodes:
  - address: 127.0.0.1:27900
    sinks:
      - {name: counts, type: CSV, path: counts.csv, mode: append}
      - {name: sums, type: CSV, path: sums.csv, mode: append}
""",
    "topology.yaml",
)


def visits_by_hour(members: int) -> SteppedQuery:
    """Their number in each hour, and the sum of n, which may be beyond its range."""
    aggregates = {"counts": "count(*)", "sums": "sum(n)"}
    query = query_of(
        op("source", "visits", logical="visits"),
        op("window", "hours", input="visits", time="at", size="1 hour"),
        *(
            op("aggregate", f"{name}-of", input="hours", by=["window_start"], aggregates={"x": expression})
            for name, expression in aggregates.items()
        ),
        *(op("sink", name, input=f"{name}-of", sink=name) for name in aggregates),
    )
    return SteppedQuery.divided(check_stepped(query, VISITS), members, {"visits": ()}, frozenset(["visits"]))


async def test_windows_that_another_output_has_written_are_not_left_open(tmp_path: Path) -> None:
    """A sum cannot close its window, and the member that counts has closed it: left open, it would come out twice."""
    query = visits_by_hour(2)
    home = query.plan.homes["counts"]
    async with Members(query, tmp_path) as circuit, circuit.coordinated() as coordinator:
        await until_running(coordinator)
        schema = circuit.members[0].inputs["visits"]
        rows = pa.record_batch([[2**63 - 1, 1], [0, 1], [1, 1]], schema=schema)
        await circuit.push(0, rows, handle="visits")
        await until_async(lambda: steps_of(circuit, home), "a step")
        coordinator.shut_down(drain=True)
        with pytest.raises(
            MemberFailed, match=r"This step closes windows\. To keep these windows open, "
        ) as failed:
            await coordinator.running  # type: ignore[attr-defined]
        found = failed_step_in(str(failed.value))
        assert found is not None
        log = circuit.members[home].outputs
        assert log is not None
        if log.last == found.step:  # it was not as fast this time
            counted = pa.record_batch([[0], [2], [1]], schema=log.schemas["counts"])
            await log.write(found.step, {"counts": counted})
    wrong = (
        f"--skip-step {found.step}: windows that this step closes cannot stay open, because they "
        f"are already written to counts, "
    )
    steps = SkippedSteps(Notes(tmp_path), tmp_path)
    with pytest.raises(WindowsWritten, match=wrong):
        await steps.add([found.step], query, places(circuit))
    assert await steps.known() == []
    # At workers of a topology it is the member that finds out.
    circuit = Members(query, tmp_path, left_out=[LeftOut(found.step, "")])
    async with circuit, circuit.coordinated() as coordinator:
        with pytest.raises(MemberFailed, match=wrong):
            await coordinator.running  # type: ignore[attr-defined]


async def steps_of(circuit: Members, member: int) -> bool:
    log = circuit.members[member].outputs
    return log is not None and log.last > 0


FAULTS = {
    "a cast of a string": ("CAST(v AS BIGINT)", "x"),
    "a cast to a smaller type": ("CAST(CAST(v AS BIGINT) AS TINYINT)", "128"),
    "an overflow": ("CAST(v AS BIGINT) * 2", "9223372036854775807"),
    "a division": ("100 // CAST(v AS BIGINT)", "0"),
    "a date": ("CAST('2026-01-' || v AS DATE)", "32"),
}
"""Expressions over a column of strings, and a string with which each cannot be computed."""
WRITERS = {"CSV": pyarrow.csv.write_csv, "Parquet": pyarrow.parquet.write_table}


@pytest.mark.parametrize(
    ("fault", "type_", "members"),
    [*((fault, "CSV", "2") for fault in FAULTS), *(("a division", type_, "1") for type_ in WRITERS)],
)
def test_rows_of_files_that_cannot_be_computed_are_left_out_and_all_others_count(
    fault: str, type_: str, members: str, tmp_path: Path
) -> None:
    """The rows that fail go to a file; the input that does not fail has all of its rows in the same step."""
    expression, bad = FAULTS[fault]
    values = ["10", "11", bad, "12", "10", bad]
    keys = [f"k{number}" for number in range(len(values))]
    WRITERS[type_](pa.table({"k": keys, "v": values}), tmp_path / "in")
    WRITERS[type_](pa.table({"k": keys, "name": [key.upper() for key in keys]}), tmp_path / "names")
    (tmp_path / "topology.yaml").write_text(
        f"""
logical:
  - {{name: values, schema: [{{name: k, type: string}}, {{name: v, type: string}}]}}
  - {{name: names, schema: [{{name: k, type: string}}, {{name: name, type: string}}]}}
nodes:
  - address: 127.0.0.1:27900
    physical:
      - {{logical: values, type: {type_}, path: in}}
      - {{logical: names, type: {type_}, path: names}}
    sinks: [{{name: out, type: CSV, path: out.csv, mode: append}}]
""",
        "utf-8",
    )
    operators = [
        op("source", "values", logical="values"),
        op("source", "names", logical="names"),
        op("project", "made", input="values", columns={"k": "k", "made": expression}),
        op("join", "named", inputs=["made", "names"], on=["k"]),
        op("sink", "out", input="named", sink="out"),
    ]
    (tmp_path / "query.json").write_text(json.dumps({"operators": operators}), "utf-8")
    files = [tmp_path / "topology.yaml", tmp_path / "query.json"]
    run = ("run", *files, "--stepped", "--state", tmp_path / "state", "--members", members)
    failed = nebuli(*run, "--json", directory=tmp_path)
    assert failed.exit_code == 2, failed.stderr
    assert "Traceback" not in failed.stderr
    said = re.search(
        r"step (\d+) of input values cannot be computed: operator made: .*--skip-step \1", failed.error
    )
    assert said, failed.error
    continued = nebuli(*run, "--skip-step", said[1], "--json", directory=tmp_path)
    later = nebuli(*run, "--json", directory=tmp_path)
    for ended in (continued, later):
        assert ended.exit_code == 0, ended.stderr
        (left_out,) = json.loads(ended.stdout)["skipped_rows"]
        assert (left_out["input"], left_out["rows"], left_out["unfit"]) == ("values", 2, True)
        assert f"step {said[1]} skips 2 rows of input values" in ended.stderr
    with pa.ipc.open_file(left_out["file"]) as file:
        assert file.read_all().select(["k", "v"]).to_pylist() == [
            {"k": key, "v": value} for key, value in zip(keys, values, strict=True) if value == bad
        ]
    names = sorted(pyarrow.csv.read_csv(tmp_path / "out.csv").column("name").to_pylist())
    assert names == [key.upper() for key, value in zip(keys, values, strict=True) if value != bad]
