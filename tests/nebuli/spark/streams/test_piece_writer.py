"""What tasks and drivers do at a circuit, without Spark: attempts that fail, commits that come again, or too late."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.spark import pushed_batches
from nebuli.spark.pushed_batches import Work
from nebuli.spark.streams.circuit_options import Place, WriteOptions
from nebuli.spark.streams.errors import BatchLost, CircuitStreamError
from nebuli.spark.streams.piece_writer import Pieces, Staged
from spark_bridge import CheckpointReplaced
from tests.nebuli.spark.streams.served_circuit import Rows, ServedCircuit, holders
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.processes, pytest.mark.long]

SCHEMA = pa.schema([("shop", pa.string()), ("amount", pa.int64())])


@pytest.fixture
def writer(circuit: ServedCircuit, monkeypatch: pytest.MonkeyPatch) -> Staged:
    monkeypatch.setattr(pushed_batches, "complete", iter)  # Spark's worker says whether rows are complete
    return Staged(WriteOptions(Place(circuit.address, 30.0, None, None), "sales", None, None), SCHEMA)


def batch(number: int) -> Work:
    return Work("spark query 4f", number, f"query 4f, batch {number}")


def rows(*numbers: int) -> Iterator[pa.RecordBatch]:
    for number in numbers:
        yield pa.record_batch({"shop": ["x"], "amount": [number]}, schema=SCHEMA)


def there(*numbers: int) -> Rows:
    return Counter(("x", number) for number in numbers)


def left(circuit_folder: Path) -> int:
    """How many pieces are staged."""
    return len(list(circuit_folder.rglob("*staged*/*")))


def test_a_batch_counts_once_though_it_is_staged_and_committed_again(
    circuit: ServedCircuit, writer: Staged, tmp_path: Path
) -> None:
    attempts = [writer.stage(batch(0), rows(1, 2)) for _ in range(2)]
    others = writer.stage(batch(0), rows(3))
    writer.push(batch(0), [attempts[1], others])
    wait_for(lambda: left(tmp_path) == 0, "they are deleted, behind the answer")
    again = [writer.stage(batch(0), rows(1, 2)), writer.stage(batch(0), rows(3))]
    assert again == [Pieces(known=True)] * 2
    for pieces in (again, [attempts[0], others], []):
        writer.push(batch(0), pieces)
    writer.push(batch(2), [writer.stage(batch(2), rows(4))])
    steps = circuit.steps("rows", there(1, 2, 3, 4))
    assert [holders(steps, each) for each in (there(1, 2, 3), there(4))] == [1, 1]
    with pytest.raises(
        CheckpointReplaced,
        match="query 4f, batch 0: the higher number 2 was already pushed, so the query's checkpoint, or "
        "txnVersion, is older",
    ):
        writer.push(batch(0), again)


def test_a_task_that_fails_leaves_nothing_and_so_does_a_batch_that_is_given_up(
    circuit: ServedCircuit, writer: Staged, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushed_batches, "_ROWS", 1)  # a piece for each row

    def breaks() -> Iterator[pa.RecordBatch]:
        yield from rows(1, 2)
        assert left(tmp_path) == 2
        raise OSError("the rows broke off")

    with pytest.raises(OSError, match="broke off"):
        writer.stage(batch(0), breaks())
    wait_for(lambda: left(tmp_path) == 0, "they are deleted, behind the answer")
    made = writer.stage(batch(0), rows(1, 2))
    assert left(tmp_path) == len(made.names) == 2
    writer.drop(batch(0), [made])
    wait_for(lambda: left(tmp_path) == 0, "they are deleted, behind the answer")
    with pytest.raises(
        BatchLost, match=r"query 4f, batch 0: .*Start the query again with the same checkpoint"
    ):
        writer.push(batch(0), [made])
    writer.push(batch(0), [writer.stage(batch(0), rows(1, 2))])
    assert holders(circuit.steps("rows", there(1, 2)), there(1, 2)) == 1


def test_what_tasks_were_told_is_not_believed_if_the_circuit_has_begun_anew(writer: Staged) -> None:
    """Else the rows of those who staged nothing would be missing."""
    with pytest.raises(
        CircuitStreamError, match="this batch was already pushed, but now does not have the batch"
    ):
        writer.push(batch(0), [Pieces(known=True), writer.stage(batch(0), rows(1))])
