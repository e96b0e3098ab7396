"""Outputs of a circuit as streams and batches of Spark: every change once, by step."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from tests.nebuli.spark.streams.served_circuit import Rows, ServedCircuit, totals

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(600)]

PUSHES = 10


def batch(number: int) -> pa.RecordBatch:
    shops = [f"shop-{row % 3}" for row in range(20)]
    return pa.record_batch(
        {"shop": shops, "amount": pa.array(range(number * 20, number * 20 + 20), pa.int64())}
    )


def all_rows(pushes: int) -> Rows:
    return Counter(
        (row["shop"], row["amount"]) for number in range(pushes) for row in batch(number).to_pylist()
    )


def pushed(circuit: ServedCircuit, first: int, until: int) -> int:
    """Push, each for a step of its own; the step behind the last one."""
    with circuit.called() as called:
        for number in range(first, until):
            step = called.push("sales", batch(number), producer="p", sequence=number)
            for _ in called.output("rows", step):
                break
        return called.status().complete


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServedCircuit]:
    """A circuit that has made steps."""
    served = ServedCircuit(tmp_path_factory.mktemp("filled") / "circuit")
    served.start()
    pushed(served, 0, PUSHES)
    yield served
    served.stop()


def reader(of, circuit: ServedCircuit, output: str, **options: object):
    return of.format("circuit").options(circuit=circuit.address, output=output, **options)


def sums(rows: list) -> Rows:
    found: Rows = Counter()
    for *row, weight, _ in rows:
        found[tuple(row)] += weight
    return Counter({row: weight for row, weight in found.items() if weight})


def test_a_batch_has_every_change_with_its_weight_and_step(spark, filled: ServedCircuit) -> None:
    found = reader(spark.read, filled, "totals", minPartitions=3).load()
    assert found.columns == ["shop", "sales", "amount", "_weight", "_step"]
    assert found.rdd.getNumPartitions() == 3
    rows = found.collect()
    assert sums(rows) == totals(all_rows(PUSHES))
    expected = filled.steps("totals", totals(all_rows(PUSHES)))
    for step, change in expected:
        assert sums([row for row in rows if row[-1] == step]) == change
    some = reader(spark.read, filled, "totals", startingStep=expected[2][0], endingStep=expected[5][0]).load()
    assert {row[-1] for row in some.collect()} == {step for step, _ in expected[2:5]}


def test_rows_that_are_only_added_are_read_plainly_and_others_refused(spark, filled: ServedCircuit) -> None:
    plain = reader(spark.read, filled, "rows", appendOnly=True).load()
    assert plain.columns == ["shop", "amount"]
    assert Counter(map(tuple, plain.collect())) == all_rows(PUSHES)
    taken_back = reader(spark.read, filled, "totals", appendOnly=True).load()
    with pytest.raises(Exception, match=r"RowTakenBack: .*output totals: step \d+ retracts {'shop': "):
        taken_back.collect()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"output": "other"}, "no output 'other': it has rows, totals"),
        ({"startingStep": "soon"}, "takes earliest, latest, or the number of a step, not 'soon'"),
        ({"startingStep": "5", "endingStep": "4"}, "steps from 5 up to 4 are requested"),
        ({"endingStep": "4000"}, "only steps below [0-9]+ are computed"),
        ({"maxStepsPerTrigger": "4"}, "is for a streaming read, but this is a batch read"),
        ({"input": "sales"}, "the option input is for a batch write or streaming write"),
    ],
)
def test_what_is_wrong_is_said(spark, filled: ServedCircuit, options: dict[str, str], said: str) -> None:
    with pytest.raises(Exception, match=said):
        reader(spark.read, filled, **{"output": "rows"} | options).load().collect()


def test_a_stream_goes_on_where_its_checkpoint_is_and_reads_so_many_steps_at_once(
    spark, circuit: ServedCircuit, tmp_path: Path
) -> None:
    """Into Parquet, over two runs, with a restart of the circuit and a kill of a member between."""

    def run() -> list[dict]:
        frame = reader(spark.readStream, circuit, "totals", maxStepsPerTrigger=3, minPartitions=2).load()
        query = (
            frame.writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination(200)
        return [json.loads(json.dumps(each["sources"][0])) for each in query.recentProgress]

    def read(pushes: int) -> None:
        found = [tuple(row) for row in spark.read.parquet(str(tmp_path / "out")).collect()]
        assert sums(found) == totals(all_rows(pushes))
        assert len(set(found)) == len(found)

    until = pushed(circuit, 0, PUSHES)
    sources = run()
    ends = [json.loads(each["endOffset"])["step"] for each in sources if each["endOffset"]]
    assert ends[-1] >= until
    assert max(b - a for a, b in zip([0, *ends], ends, strict=False)) <= 3
    read(PUSHES)
    circuit.kill_member(1)
    pushed(circuit, PUSHES, PUSHES + 4)
    circuit.kill()
    circuit.start()
    run()
    read(PUSHES + 4)


def test_a_stream_follows_and_waits_while_the_circuit_is_away(
    spark, circuit: ServedCircuit, tmp_path: Path
) -> None:
    pushed(circuit, 0, 3)
    frame = reader(spark.readStream, circuit, "rows", appendOnly=True, startingStep="earliest").load()
    writer = (
        frame.writeStream.format("memory")
        .queryName("followed")
        .option("checkpointLocation", str(tmp_path / "c"))
    )
    query = writer.start()
    try:
        query.processAllAvailable()
        assert Counter(map(tuple, spark.table("followed").collect())) == all_rows(3)
        circuit.kill()
        circuit.start()
        pushed(circuit, 3, 6)
        query.processAllAvailable()
        assert Counter(map(tuple, spark.table("followed").collect())) == all_rows(6)
    finally:
        query.stop()
