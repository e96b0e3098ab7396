"""Streams of Spark into an input of a circuit: each batch in one step, once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from tests.nebuli.spark.streams.served_circuit import Rows, ServedCircuit, holders, totals

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long]

SCHEMA = "shop STRING, amount BIGINT"


def files(folder: Path, batches: int, rows: int = 50) -> list[Rows]:
    """A file for each batch, in the order of their names and times: what is in each."""
    found = []
    folder.mkdir()
    for number in range(batches):
        some = [(f"shop-{row % 7}", number * 1000 + row) for row in range(rows)]
        lines = "".join(f'{{"shop": "{shop}", "amount": {amount}}}\n' for shop, amount in some)
        (folder / f"{number:04}.json").write_text(lines, "utf-8")
        found.append(Counter(some))
    return found


def stream(spark, folder: Path, partitions: int = 3):
    read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", 1)
    return read.json(str(folder)).repartition(partitions)


def written(frame, circuit: ServedCircuit, checkpoint: Path, **options: str):
    writer = frame.writeStream.format("circuit").option("circuit", circuit.address).option("input", "sales")
    return writer.options(**options).option("checkpointLocation", str(checkpoint))


def test_each_batch_is_in_one_step(spark, circuit: ServedCircuit, tmp_path: Path) -> None:
    batches = files(tmp_path / "in", 3)
    query = written(stream(spark, tmp_path / "in"), circuit, tmp_path / "checkpoint")
    query.trigger(availableNow=True).start().awaitTermination(200)
    expected: Rows = sum(batches, Counter())
    steps = circuit.steps("rows", expected)
    assert [holders(steps, each) for each in batches] == [1] * len(batches)
    circuit.steps("totals", totals(expected))


def test_rows_are_taken_back_by_weights_in_a_batch(spark, circuit: ServedCircuit) -> None:
    def push(rows: list[tuple[object, ...]], schema: str, **options: object) -> None:
        writer = spark.createDataFrame(rows, schema).repartition(4).write.format("circuit").mode("append")
        writer.options(circuit=circuit.address, input="sales", **options).save()

    push([("a", number) for number in range(40)], SCHEMA)
    push(
        [(number, "a", 1 - 2 * (number % 2)) for number in range(40)],
        "amount BIGINT, shop STRING, _weight INT",
    )
    expected: Rows = Counter({("a", number): 2 * (1 - number % 2) for number in range(0, 40, 2)})
    circuit.steps("rows", expected)
    for rows in ([("b", 1)], [("c", 1)]):  # the second is no other version
        push(rows, SCHEMA, txnAppId="loader", txnVersion=7)
    push([("d", 1)], SCHEMA, txnAppId="loader", txnVersion=9)
    with pytest.raises(
        Exception, match=r"CheckpointReplaced.*version 8: the higher number 9 was already pushed"
    ):
        push([("e", 1)], SCHEMA, txnAppId="loader", txnVersion=8)
    with pytest.raises(Exception, match=r"WrongRows|have no _weight"):
        push([("f", 1, None)], f"{SCHEMA}, _weight BIGINT")
    push([("g", 1)], SCHEMA)  # behind all that must not be there
    expected.update({("b", 1): 1, ("d", 1): 1, ("g", 1): 1})
    circuit.steps("rows", expected)


@pytest.mark.parametrize(
    ("options", "schema", "said"),
    [
        (
            {},
            "shop STRING",
            "input sales expects shop string, amount int64, .* rows have shop string: select",
        ),
        ({}, "shop STRING, amount INT", "the given rows have shop string, amount int32"),
        ({}, f"{SCHEMA}, more INT", "the given rows have shop string, amount int64, more int32"),
        ({}, f"{SCHEMA}, _weight STRING", "the given rows have shop string, amount int64, _weight string"),
        ({"input": "other"}, SCHEMA, "no input for pushes 'other': it has sales"),
        ({"inptu": "sales"}, SCHEMA, "no option 'inptu' for a batch write: did you mean input"),
        ({"txnVersion": "1"}, SCHEMA, "txnAppId and txnVersion together .*: give both"),
        ({"circuit": "127.0.0.1"}, SCHEMA, "the option circuit takes HOST:PORT, or HOST:PORT/ID"),
    ],
)
def test_what_is_wrong_is_said_at_the_start(
    spark, one_circuit: ServedCircuit, options: dict[str, str], schema: str, said: str
) -> None:
    given = {"circuit": one_circuit.address, "input": "sales"} | options
    writer = spark.createDataFrame([], schema).write.format("circuit").mode("append").options(**given)
    with pytest.raises(Exception, match=said):
        writer.save()


def test_a_circuit_that_is_not_there_is_waited_for_until_the_deadline(spark) -> None:
    writer = spark.createDataFrame([("a", 1)], SCHEMA).write.format("circuit").mode("append")
    with pytest.raises(Exception, match=r"CircuitAway: circuit 127.0.0.1:1, input sales: .*waited for 1 s"):
        writer.options(circuit="127.0.0.1:1", input="sales", timeout="1").save()


def test_a_new_checkpoint_is_another_query_whose_batches_begin_at_0(
    spark, circuit: ServedCircuit, tmp_path: Path
) -> None:
    batches = files(tmp_path / "in", 1)
    for checkpoint in ("first", "second"):
        query = written(stream(spark, tmp_path / "in"), circuit, tmp_path / checkpoint)
        query.queryName("same").trigger(availableNow=True).start().awaitTermination(200)
    expected: Rows = sum(batches + batches, Counter())
    circuit.steps("rows", expected)
