"""Blobs of updates: the bytes are those of one Arrow stream, with weights as runs where runs are long."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from nebuli.dataflow.zset import weighted
from tests.support.stores import Here, store_at

if TYPE_CHECKING:
    from pathlib import Path

_SCHEMA = weighted(pa.schema([("n", pa.int64()), ("text", pa.string())]))
_ROWS = 20_000


def _zset(weights: list[int]) -> pa.RecordBatch:
    numbers = range(len(weights))
    return pa.record_batch([numbers, [f"row {n}" for n in numbers], weights], schema=_SCHEMA)


@pytest.mark.parametrize(
    ("weights", "has_runs"),
    [
        pytest.param([1] * _ROWS, True, id="added"),
        pytest.param([1] * (_ROWS // 2) + [-1] * (_ROWS // 2), True, id="added-and-retracted"),
        pytest.param([1, -1] * (_ROWS // 2), False, id="replaced"),
    ],
)
async def test_a_blob_is_a_stream_with_runs_of_weights(
    tmp_path: Path, weights: list[int], has_runs: bool
) -> None:
    """The second update is a part of a larger batch, of which nothing else is written."""
    first, second = _zset(weights), _zset([1, *weights, 1]).slice(1, _ROWS)
    async with store_at(Here(tmp_path)) as store:
        shard = await store.create_shard("s", _SCHEMA, keeps="updates")
        await shard.compare_and_append([(0, first), (2, second)], 0, 3)
    (blob,) = [each for each in (tmp_path / "blobs").rglob("*") if each.is_file()]
    table = pa.ipc.open_stream(blob.read_bytes()).read_all()
    assert pa.types.is_run_end_encoded(table.schema.field("_weight").type) == has_runs
    assert table["_weight"].to_pylist() == weights * 2
    assert table["_time"].to_pylist() == [0] * _ROWS + [2] * _ROWS
    async with store_at(Here(tmp_path)) as store:
        shard = await store.open_shard("s")
        assert await shard.read(0, 3) == [(0, first), (2, second)]
