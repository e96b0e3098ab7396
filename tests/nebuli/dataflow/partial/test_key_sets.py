"""Sets of keys against sets of Python."""

from __future__ import annotations

import math

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nebuli.dataflow import DataflowError, hashing
from nebuli.dataflow.partial import Base, View
from nebuli.dataflow.partial.key_sets import KeySet, among, batch_of, distinct, from_tuples, tuples_of
from placement.plan import FilterOperator
from tests.nebuli.dataflow.partial.library import Library
from tests.nebuli.dataflow.partial.reference import contents
from topology import Column, DataType

TYPES = [pa.int64(), pa.string()]
KEYS = st.lists(st.tuples(st.none() | st.integers(0, 3), st.none() | st.sampled_from("ab")), max_size=6)
CHANGES = st.lists(st.tuples(st.sampled_from(["add", "discard", "touch", "note"]), KEYS), max_size=12)


@given(CHANGES, KEYS, st.booleans())
def test_it_has_what_was_added_and_knows_what_was_used_last(
    changes: list, asked: list, collide: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        if collide:
            patch.setattr(
                hashing, "hash_rows", lambda _, rows: pa.array([7] * rows, pa.uint64()).to_numpy(False)
            )
        keys, used = KeySet(TYPES), dict[tuple, int]()
        for now, (change, listed) in enumerate(changes):
            batch = distinct(from_tuples(listed, TYPES))
            if change == "add":
                fresh = [key for key in tuples_of(batch) if key not in used]
                keys.add(from_tuples(fresh, TYPES))
                used |= dict.fromkeys(fresh, now)
            elif change == "discard":
                gone = {key for key in listed if used.pop(key, None) is not None}
                assert set(tuples_of(keys.discard(batch))) == gone
            elif change == "touch":
                keys.used_now(keys.hashed(batch))
                used |= {key: now for key in listed if key in used}
            else:
                for key in [key for key in listed if key in used][:1]:
                    keys.note_use(keys.hashed(from_tuples([key], TYPES)))
                    used[key] = now
        assert len(keys) == len(used)
        assert keys.has(from_tuples(asked, TYPES)).tolist() == [key in used for key in asked]
        there, order = keys.all()
        found = dict(zip(tuples_of(there), order.tolist(), strict=True))
        assert found.keys() == used.keys()
        times = sorted((found[key], used[key]) for key in used)
        assert [time for _, time in times] == sorted(used.values())


def test_uses_of_single_keys_are_known_though_they_are_written_down_together() -> None:
    """Whether they are asked for by then or not; nothing is kept of those that were written down."""
    keys = KeySet([pa.int64()])
    keys.add(from_tuples([(number,) for number in range(3)], [pa.int64()]))
    for _ in range(1000):
        for number in (2, 0):
            keys.note_use(keys.hashed(from_tuples([(number,)], [pa.int64()])))
    assert len(keys._noted) < 256
    there, times = keys.all()
    order = sorted(zip(times.tolist(), tuples_of(there), strict=True))
    assert [key for _, key in order] == [(1,), (2,), (0,)]
    assert not keys._noted


@given(KEYS, KEYS)
def test_which_keys_are_among_others(keys: list, others: list) -> None:
    found = among(from_tuples(keys, TYPES), from_tuples(others, TYPES))
    assert found.tolist() == [key in others for key in keys]


def test_all_nan_are_one_key_and_so_are_both_zeros_and_null_is_a_key() -> None:
    """PS-GOAL-2: they are missing, present, and waited for as any other key."""
    base = Base("base", (Column(name="x", type=DataType.FLOAT64), Column(name="n", type=DataType.INT64)))
    library = Library(base, View("v", "base", ("x",)))
    library.give("base", (math.nan, 1), (0.0, 2), (-0.0, 3), (None, 4), (1.0, 5))
    library.drain()
    for key, numbers in [(float("nan"), {1}), (-0.0, {2, 3}), (None, {4})]:
        library.read("v", [(key,)])
        library.read("v", [(float("nan") if key is not None and math.isnan(key) else key,)])
        (filled,) = library.drain()
        assert {row[1] for row in contents(filled.rows)} == numbers
        assert library.read("v", [(key,)]).missing.num_rows == 0
    assert len(library.partial[library.nodes["v"].place].present) == 3  # type: ignore[attr-defined]


def test_an_error_names_the_operator() -> None:
    base = Base("base", (Column(name="x", type=DataType.INT64),))
    library = Library(
        base, FilterOperator(id="half", input="base", predicate="10 // x > 1"), View("v", "half", ("x",))
    )
    library.give("base", (0,))
    with pytest.raises(DataflowError, match="operator half: divide by zero"):
        library.drain()


def test_moments_that_python_has_not_are_keys() -> None:
    far = pa.array([253_402_300_800_000_000, 0], pa.timestamp("us"))
    keys = batch_of([far, pa.array([10_000_000, None], pa.date32())])
    assert tuples_of(keys) == [(253_402_300_800_000_000, 10_000_000), (0, None)]
    assert from_tuples(tuples_of(keys), keys.schema.types) == keys
