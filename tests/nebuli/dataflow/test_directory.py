"""Where hashes stand, by search and by table, against NumPy's own search."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow import hashing
from nebuli.dataflow.hashing import Directory

MANY = 100_000
EDGES = [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 2, (1 << 64) - 1]
HASHES = st.sampled_from(EDGES) | st.integers(0, (1 << 64) - 1) | st.integers(5, 20)


def agrees(found: Directory, hashes: np.ndarray, wanted: np.ndarray) -> None:
    first, counts = found.find(wanted)
    left, right = (np.searchsorted(hashes, wanted, side=side) for side in ("left", "right"))
    assert counts.tolist() == (right - left).tolist()
    assert first[counts > 0].tolist() == left[counts > 0].tolist()


@given(st.lists(HASHES, min_size=1), st.lists(HASHES))
def test_finds_what_is_there(there: list[int], wanted: list[int]) -> None:
    hashes = np.sort(np.array(there, dtype=np.uint64))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "_FEWEST", 1)
        patch.setattr(hashing, "_FEW", 0)
        found = Directory(hashes)
        for sought in (wanted, there, [*wanted, *there, *EDGES]):  # by search at first, and then by table
            agrees(found, hashes, np.array(sought, dtype=np.uint64))
        assert found._table is not None


@pytest.mark.parametrize("lumps", [1, 3, 1000])
def test_finds_what_lies_in_lumps(lumps: int) -> None:
    """As the hashes of windows do, which are apart by what the windows are apart."""
    rng = np.random.default_rng(lumps)
    places = rng.integers(0, 1 << 63, lumps) & ~np.int64(0xFFFFF)
    hashes = np.sort(
        (places[rng.integers(0, lumps, MANY)] + rng.integers(0, 1 << 20, MANY)).astype(np.uint64)
    )
    found, wanted = Directory(hashes), np.concatenate([hashes, hashes + np.uint64(1)])
    for _ in range(2):
        agrees(found, hashes, rng.permutation(wanted))
    assert found.nbytes > 0


def test_few_are_sought_among_not_many_without_a_table() -> None:
    hashes = np.sort(np.random.default_rng(0).integers(0, 1 << 63, 20_000).astype(np.uint64))
    found = Directory(hashes)
    for index in range(100):
        agrees(found, hashes, hashes[index::100])
    assert found.nbytes == 0


def test_a_table_is_made_once_one_was_sought_for_every_eight_that_are_there() -> None:
    hashes = np.sort(np.random.default_rng(0).integers(0, 1 << 63, MANY).astype(np.uint64))
    found = Directory(hashes)
    for index in range(9):
        found.find(hashes[index::80][: MANY // 80])
        assert found.nbytes == 0
    found.find(hashes[::80])
    assert 0 < found.nbytes <= 16 * MANY
