"""Rows to channels, by partition and by key."""

from __future__ import annotations

import datetime
import subprocess
import sys
from decimal import Decimal

import pyarrow as pa
import pytest

from spark_bridge import OptionError
from spark_bridge.writing.routing import by_key, by_partition, check_key, key_hash

BITS = (1 << 64) - 1


def finaliser(number: int) -> int:
    """MurmurHash3's, in plain integers."""
    for constant in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        number = ((number ^ number >> 33) * constant) & BITS
    return number ^ number >> 33


def hashes(*columns) -> list[int]:
    names = [str(n) for n in range(len(columns))]
    return key_hash(pa.RecordBatch.from_arrays(list(columns), names), tuple(names)).tolist()


def test_integers_are_mixed_as_written_down():
    values = [0, 1, -1, 2**63 - 1, -(2**63)]
    assert hashes(pa.array(values, pa.int64())) == [finaliser(value & BITS) for value in values]
    two = hashes(pa.array([5]), pa.array([7]))
    assert two == [finaliser((finaliser(5) * 31 + 7) & BITS)]


def test_texts_are_mixed_as_xxh64_of_their_bytes():
    """The value of the empty text is the one that the algorithm's specification gives."""
    assert hashes(pa.array([""])) == [finaliser(0xEF46DB3751D8E999)]


def test_equal_keys_are_equal_whatever_their_type():
    assert hashes(pa.array([5], pa.int8())) == hashes(pa.array([5], pa.int64()))
    assert hashes(pa.array([-0.0])) == hashes(pa.array([0.0]))
    one, other = (
        pa.array([Decimal("1.50")], pa.decimal128(5, 2)),
        pa.array([Decimal("1.5")], pa.decimal128(9, 1)),
    )
    assert hashes(one) == hashes(other)
    assert hashes(pa.array(["x"]).dictionary_encode().cast(pa.string())) == hashes(pa.array(["x"]))


def test_nulls_are_one_key():
    day = datetime.date(2024, 1, 1)
    for column in (pa.array([None, 1]), pa.array([None, "a"]), pa.array([None, day]), pa.array([None, 1.5])):
        assert hashes(column)[0] == hashes(pa.array([None], pa.int64()))[0]
        assert len(set(hashes(column))) == 2


@pytest.mark.processes
def test_another_process_gives_the_same_numbers():
    code = (
        "import pyarrow as pa; from spark_bridge.writing.routing import key_hash;"
        "print(key_hash(pa.RecordBatch.from_pydict({'k': ['a', 'b', None], 'n': [1, 2, 3]}), ('k', 'n')).tolist())"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True
    ).stdout
    assert said.strip() == str(hashes(pa.array(["a", "b", None]), pa.array([1, 2, 3])))


def test_rows_are_parted_by_key_and_keep_their_order():
    rows = pa.RecordBatch.from_pydict({"k": [n % 50 for n in range(1000)], "n": list(range(1000))})
    parts = dict(by_key(("k",), 3)(rows))
    assert sorted(n for part in parts.values() for n in part["n"].to_pylist()) == list(range(1000))
    for part in parts.values():
        assert part["n"].to_pylist() == sorted(part["n"].to_pylist())
    keys = [set(part["k"].to_pylist()) for part in parts.values()]
    assert sum(map(len, keys)) == 50
    assert min(map(len, keys)) > 5


def test_rows_of_a_partition_stay_together():
    rows = pa.RecordBatch.from_pydict({"n": [1]})
    assert [list(by_partition(n, 2)(rows)) for n in range(3)] == [[(0, rows)], [(1, rows)], [(0, rows)]]


def test_what_is_no_key_is_refused():
    """SP-OPT-1."""
    schema = pa.schema({"n": pa.int64(), "list": pa.list_(pa.int64())})
    check_key(schema, ("n",))
    with pytest.raises(OptionError, match="names 'm', but the rows have n, list"):
        check_key(schema, ("m",))
    twice = pa.schema([("n", pa.int64()), ("n", pa.int64())])
    with pytest.raises(
        OptionError, match="names 'n', but the rows have n, n: give a column that occurs once"
    ):
        check_key(twice, ("n",))
    with pytest.raises(OptionError, match="names 'list', which is list"):
        check_key(schema, ("list",))
