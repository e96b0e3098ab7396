"""Two processes that drop, create, write and read the same collection: each answer is right, or a typed error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from nebuli.blocking import Collections

pytestmark = pytest.mark.processes

_ROUNDS = 40
_SCRIPT = """
import json, sys
import pyarrow as pa
from nebuli.blocking import Collections
from nebuli.store.collections.errors import CollectionExists, CollectionUnknown

SCHEMA = pa.schema([("writer", pa.string()), ("number", pa.int64())])
name, rounds = sys.argv[2], int(sys.argv[3])
acknowledged, created, dropped, refused = [], 0, 0, 0
with Collections(sys.argv[1]) as collections:
    for number in range(rounds):
        try:
            collections.create("sales", SCHEMA)
            created += 1
        except CollectionExists:
            refused += 1
        try:
            at = collections.insert("sales", pa.record_batch([[name], [number]], schema=SCHEMA))
            acknowledged.append([at, number])
            collections.snapshot("sales", at)
            if number % 3 == 2:
                collections.drop("sales")
                dropped += 1
        except CollectionUnknown:
            refused += 1
print(json.dumps({"acknowledged": acknowledged, "created": created, "dropped": dropped, "refused": refused}))
"""


def test_two_processes_drop_and_write_the_same_collection(tmp_path: Path) -> None:
    """Each create and each drop is of one process; what is there was acknowledged since the last create."""
    store = tmp_path / "store"
    with Collections(store):
        pass
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", _SCRIPT, str(store), name, str(_ROUNDS)],
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        for name in "ab"
    ]
    said = {}
    for name, each in zip("ab", writers, strict=True):
        output, _ = each.communicate(timeout=120)
        assert each.returncode == 0, "an error that is not typed"
        said[name] = json.loads(output)
    with Collections(store) as collections:
        there = list(collections.list())
        assert sum(each["created"] - each["dropped"] for each in said.values()) == len(there)
        if there:
            begun = collections.describe("sales").created
            found = {(row["writer"], row["number"]) for row in collections.snapshot("sales").to_pylist()}
            expected = {
                (name, number)
                for name, each in said.items()
                for at, number in each["acknowledged"]
                if at >= begun
            }
            assert found == expected
            collections.drop("sales")
        collections.keep_house()
    assert list((store / "blobs").rglob("*-*")) == []
