"""A collection as a sink: whose rows a run goes on behind."""

from __future__ import annotations

import itertools
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
        with pytest.raises(
            OutputGone, match="the collection was replaced by another of this name, or by an older copy"
        ):
            inserted(tmp_path, [3], position)
        assert collections.snapshot("c").num_rows == 0


def result(place: Path, query: str, *batches: list[int]) -> CollectionOutput:
    """An output in mode final that has the result of a query, which is not published yet."""
    settings = {"name": "out", "type": "Collection", "store": str(place), "collection": "c", "mode": "final"}
    output = CollectionOutput(Settings.model_validate(settings))
    output.identify(query)
    output.open(SCHEMA)
    for each in batches:
        output.write(pa.record_batch([pa.array(each, pa.int64())], schema=SCHEMA))
    return output


def test_a_result_is_inserted_at_one_time_and_once_under_the_id_of_its_query(tmp_path: Path) -> None:
    """Two that compute it at once, as where one is thought to be lost, have it there once as well."""
    with Collections(tmp_path) as collections:
        first, second = (result(tmp_path, "q", [1, 2], [2]) for _ in range(2))
        assert collections.snapshot("c").num_rows == 0, "nothing before the end"
        first.publish()
        at = collections.latest("c")
        second.publish()
        result(tmp_path, "q", [7]).publish()
        result(tmp_path, "q", [8]).discard()
        result(tmp_path, "other", []).publish()
        (span,) = itertools.islice(collections.subscribe("c", 0), 1)
        (update,) = span.updates
        assert update[0] <= at
        assert sorted(update[1]["n"].to_pylist()) == [1, 2, 2]
        assert sorted(collections.snapshot("c")["n"].to_pylist()) == [1, 2, 2]
        assert [collections.next_sequence("c", each) for each in ("q", "other")] == [1, 1]
