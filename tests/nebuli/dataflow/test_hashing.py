"""Row hashes: the same for equal rows, everywhere and for ever; different enough for others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow import arrow_type
from nebuli.dataflow.hashing import FEWEST_SORTED, hash_rows, stable_order
from topology import DataType

NAN = float("nan")


def test_hashes_do_not_change_between_versions() -> None:
    columns = [pa.array(["JFK", "", None]), pa.array([1, -1, None], pa.int64()), pa.array([0.5, -0.0, NAN])]
    assert hash_rows(columns, 3).tolist() == [10082247524780825180, 3545371628628041816, 1615206012641498518]


@given(st.lists(st.none() | st.text(max_size=12), min_size=1), st.data())
def test_a_value_hashes_alike_wherever_it_stands(values: list[str | None], data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(values) - 1))
    whole = hash_rows([pa.array(values, pa.string())], len(values))
    assert (
        hash_rows([pa.array(values[start:], pa.string())], len(values) - start).tolist()
        == whole[start:].tolist()
    )
    sliced = pa.array(["x", *values], pa.string()).slice(1 + start)
    assert hash_rows([sliced], len(sliced)).tolist() == whole[start:].tolist()


@given(
    st.lists(
        st.tuples(
            st.none() | st.integers(-(1 << 63), (1 << 63) - 1),
            st.none() | st.text(max_size=70),
            st.none() | st.integers(-128, 127),
            st.none() | st.integers(0, 255),
        ),
        min_size=1,
        max_size=12,
    )
)
def test_few_rows_hash_as_many_do(rows: list[tuple[int | None, str | None, int | None, int | None]]) -> None:
    def hashes(of: list[tuple[int | None, str | None, int | None, int | None]]) -> list[int]:
        types = (pa.int64(), pa.string(), pa.int8(), pa.uint8())
        columns = [
            pa.array(values, type_) for values, type_ in zip(zip(*of, strict=True), types, strict=True)
        ]
        return [*hash_rows(columns[:3], len(of)).tolist(), *hash_rows(columns[3:], len(of)).tolist()]

    few, many = hashes(rows), hashes(rows * 13)
    assert few == many[: len(rows)] + many[len(rows) * 13 :][: len(rows)]


def test_equal_values_hash_alike() -> None:
    hashes = hash_rows([pa.array([0.0, -0.0, NAN, -NAN, None, None])], 6)
    assert hashes[0] == hashes[1]
    assert hashes[2] == hashes[3]
    assert hashes[4] == hashes[5]
    assert len(set(hashes.tolist())) == 3


@pytest.mark.parametrize("length", [65_535, 65_536, 65_537, 200_000])
def test_values_as_long_as_a_block_hash_alike(length: int) -> None:
    value = "é" * (length // 2) + "x" * (length % 2)
    alone, among = pa.array([value]), pa.array(["a", value, "b" * 70_000, value])
    assert set(hash_rows([among], 4)[[1, 3]].tolist()) == set(hash_rows([alone], 1).tolist())


def test_other_values_hash_apart() -> None:
    words = [f"{a}{b}" for a in range(300) for b in "\0\1ab"] + ["", "\0", "\0\0", "a" * 70_000, "a" * 70_001]
    numbers = np.arange(100_000)
    assert len(np.unique(hash_rows([pa.array(words)], len(words)))) == len(set(words))
    assert len(np.unique(hash_rows([pa.array(numbers), pa.array(numbers[::-1])], len(numbers)))) == len(
        numbers
    )


@pytest.mark.parametrize("type_", list(DataType))
def test_every_type_has_hashes(type_: DataType) -> None:
    integers = pa.array([0, 1, None, 0], pa.int64())
    match type_:
        case DataType.STRING | DataType.BINARY:
            column = integers.cast(pa.string()).cast(arrow_type(type_))
        case DataType.DATE:
            column = integers.cast(pa.int32()).cast(pa.date32())
        case _:
            column = integers.cast(arrow_type(type_))
    hashes = hash_rows([column], 4).tolist()
    assert hashes[0] == hashes[3]
    assert len(set(hashes)) == 3


def test_rows_of_no_columns_hash_alike() -> None:
    assert len(set(hash_rows([], 3).tolist())) == 1


_NEAR = st.integers(0, 40) | st.integers(2**63 - 20, 2**63 + 20) | st.integers(2**64 - 20, 2**64 - 1)


@given(st.lists(_NEAR | st.integers(0, 2**64 - 1), max_size=300))
def test_the_order_of_hashes_is_that_of_a_stable_sort(values: list[int]) -> None:
    """Also where they differ only in the bits that their places take meanwhile."""
    values = values * (FEWEST_SORTED // max(len(values), 1) + 1)
    hashes = np.array(values, dtype=np.uint64)
    assert stable_order(hashes).tolist() == sorted(range(len(values)), key=values.__getitem__)
