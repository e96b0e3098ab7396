"""Groups of equal rows, by the hashes that they have."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow.hashing import FEWEST_SORTED
from nebuli.dataflow.rows import group_rows, neighbours


@given(st.lists(st.tuples(st.integers(0, 5) | st.none(), st.sampled_from(["a", "b"])), min_size=1))
def test_rows_in_the_order_of_their_hashes_are_grouped_as_any_others(
    rows: list[tuple[int | None, str]],
) -> None:
    """Also where different rows have one hash, and lie among each other: here it knows the number alone."""
    rows = sorted(rows, key=lambda row: -1 if row[0] is None else row[0])
    columns = [pa.array([number for number, _ in rows], pa.int64()), pa.array([text for _, text in rows])]
    hashes = np.array([0 if number is None else number + 1 for number, _ in rows], dtype=np.uint64)
    for found in (neighbours(columns, hashes), group_rows(columns, hashes)):
        ends = np.append(found.starts[1:], len(rows))
        groups = [sorted(found.order[start:end]) for start, end in zip(found.starts, ends, strict=True)]
        wanted: dict[tuple[int | None, str], list[int]] = {}
        for place, row in enumerate(rows):
            wanted.setdefault(row, []).append(place)
        assert sorted(groups) == sorted(wanted.values())
        assert (np.diff(hashes[found.firsts].astype(np.int64)) >= 0).all()


@given(st.integers(0, 2**32), st.sampled_from([1, 30, 1 << 40]))
def test_groups_are_in_the_order_of_all_hashes(seed: int, firsts: int) -> None:
    random = np.random.default_rng(seed)
    first, second = (
        random.integers(0, most, FEWEST_SORTED + 9, dtype=np.uint64) for most in (firsts, 1 << 60)
    )
    rows = [*zip(first.tolist(), second.tolist(), strict=True)]
    found = group_rows([pa.array(first), pa.array(second)], first, second)
    assert [rows[place] for place in found.firsts] == sorted(set(rows))
    assert [rows[place] for place in found.order] == sorted(rows)
