"""What a program may hand over as rows: a batch or a table, to a circuit and to a collection alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nebuli import Circuit, Collections

BATCH = pa.record_batch({"a": [1, 2]})


async def test_a_circuit_says_how_dicts_become_rows() -> None:
    circuit = Circuit("127.0.0.1:1")  # not entered, so that nothing is called
    with pytest.raises(TypeError, match=r"the rows are a list: expected .*from_pylist\(rows, schema"):
        await circuit.push("in", BATCH.to_pylist(), producer="p", sequence=0)


@pytest.mark.parametrize("rows", [BATCH, pa.Table.from_batches([BATCH.slice(0, 1), BATCH.slice(1)])])
async def test_a_collection_takes_batches_and_tables(tmp_path: Path, rows: Any) -> None:
    async with Collections(str(tmp_path)) as collections:
        await collections.create("c", BATCH.schema)
        at = await collections.insert("c", rows)
        snapshot = await collections.snapshot("c", as_of=at)
        assert sorted(each["a"] for each in snapshot.to_pylist()) == [1, 2]
        with pytest.raises(TypeError, match="the rows are a dict: expected"):
            await collections.insert("c", BATCH.to_pydict())
