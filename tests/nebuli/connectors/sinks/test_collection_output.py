"""A collection as a sink: whose rows a run goes on behind."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.blocking import Collections
from nebuli.connectors.errors import OutputGone
from nebuli.connectors.sinks.collection_output import CollectionOutput
from topology import CollectionSink as Settings

SCHEMA = pa.schema([("n", pa.int64())])


def inserted(place: Path, rows: list[int], position: str | None = None) -> str:
    """Insert rows, each by itself, behind a position: the position behind them."""
    output = CollectionOutput(
        Settings.model_validate({"name": "out", "type": "Collection", "store": str(place), "collection": "c"})
    )
    if position is not None:
        output.resume(position)
    output.open(SCHEMA.append(pa.field("_weight", pa.int64())))
    try:
        for each in rows:
            output.write(pa.record_batch({"n": [each], "_weight": [1]}))
        return output.sync()
    finally:
        output.discard()


def test_another_collection_of_the_same_name_is_not_gone_on_with(tmp_path: Path) -> None:
    """It has not the rows before the position, and would never have them."""
    with Collections(tmp_path) as collections:
        collections.create("c", SCHEMA)
        position = inserted(tmp_path, [1, 2])
        assert inserted(tmp_path, [3], position) != position
        collections.drop("c")
        collections.create("c", SCHEMA)
        with pytest.raises(OutputGone, match="there is another collection of this name, or an older copy"):
            inserted(tmp_path, [3], position)
        assert collections.snapshot("c").num_rows == 0
