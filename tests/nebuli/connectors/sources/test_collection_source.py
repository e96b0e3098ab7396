"""A collection as a source: what holds it, while it is read and behind that."""

from __future__ import annotations

import threading
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.blocking import Collections
from nebuli.connectors import Signal
from nebuli.connectors.errors import InputGone
from nebuli.connectors.sources.collection_source import CollectionSource
from topology import CollectionSource as Settings
from topology import Column

SCHEMA = pa.schema([("n", pa.int64())])


def read(place: Path, position: str) -> tuple[list[int], str]:
    """The rows that come first from a position on, and the position behind them."""
    settings = Settings.model_validate(
        {"logical": "l", "type": "Collection", "store": str(place), "collection": "c", "reader": "r"}
    )
    woken = threading.Event()
    source = CollectionSource(settings, (Column(name="n", type="int64"),), woken.set)
    source.seek(position)
    source.apart()
    source.open()
    try:
        while isinstance(found := source.poll(), Signal):
            assert woken.wait(20)
            woken.clear()
        assert isinstance(found, pa.RecordBatch)
        return found["n"].to_pylist(), source.position
    finally:
        source.close("the test ends")


def test_a_hold_stays_at_what_an_older_checkpoint_needs(tmp_path: Path) -> None:
    with Collections(tmp_path) as collections:
        collections.create("c", SCHEMA)
        collections.insert("c", pa.record_batch({"n": [1]}))
        rows, first = read(tmp_path, "")
        assert rows == [1]
        second = collections.insert("c", pa.record_batch({"n": [2]}))
        collections.insert("c", pa.record_batch({"n": [3]}))
        assert read(tmp_path, str(second))[0] == [3]
        holds = collections.describe("c").holds
        assert {*holds} == {"history", "source/r"}, "no lease is left"
        assert holds["source/r"].time == int(first), "nothing was released"
        assert read(tmp_path, first) == ([2], str(second)), "each time by itself"
        assert read(tmp_path, "") == ([1], first), "it begins again where it had begun"


def test_another_collection_of_the_same_name_is_not_gone_on_with(tmp_path: Path) -> None:
    """Its rows would be added to those of the one that was dropped."""
    with Collections(tmp_path) as collections:
        collections.create("c", SCHEMA)
        collections.insert("c", pa.record_batch({"n": [1]}))
        rows, position = read(tmp_path, "")
        assert rows == [1]
        collections.drop("c")
        collections.create("c", SCHEMA)
        collections.insert("c", pa.record_batch({"n": [2]}))
        with pytest.raises(
            InputGone,
            match=f"read it up to {position}, but the collection that has its name now was created later",
        ):
            read(tmp_path, position)
