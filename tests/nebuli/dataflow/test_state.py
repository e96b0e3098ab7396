"""Keyed state against a dictionary, and the shape that makes it fast."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import hashing, state
from nebuli.dataflow.hashing import coded_rows, is_coded
from nebuli.dataflow.state import KeyedState, Run, consolidated

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

Entry = tuple[int | None, str, int]
ENTRIES = st.tuples(st.none() | st.integers(0, 4), st.sampled_from("abc"), st.integers(-2, 2))


def _modulo_two(columns: Sequence[Any], rows: int) -> NDArray[np.uint64]:
    return (
        columns[0].fill_null(0).to_numpy().astype(np.uint64) % np.uint64(2)
        if columns
        else np.zeros(rows, np.uint64)
    )


def _run(entries: Sequence[Entry]) -> Run:
    key, value, weight = ([entry[index] for entry in entries] for index in range(3))
    columns = [pa.array(key, pa.int64()), pa.array(value, pa.string()), pa.array(weight, pa.int64())]
    return Run.of(pa.record_batch(columns, ["key", "value", "_weight"]), ["key"])


def _found(keyed: KeyedState, keys: Sequence[int | None]) -> Counter[tuple[int | None, str]]:
    """The rows with these keys, by lookup."""
    probe = _run([(key, "", 0) for key in keys])
    found = Counter[tuple[int | None, str]]()
    for match in keyed.lookup(probe):
        for row in match.found.to_pylist():
            found[row["key"], row["value"]] += row["_weight"]
    return Counter({row: weight for row, weight in found.items() if weight})


@settings(deadline=None)
@given(
    st.lists(st.lists(ENTRIES, max_size=5), max_size=8),
    st.sets(st.none() | st.integers(0, 5)),
    st.booleans(),
    st.sampled_from([0, 2, 8]),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_takes_out_the_rows_of_keys_and_no_others(
    deltas: list[list[Entry]], keys: set[int | None], collide: bool, few: int, most_gone: float
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state, "_FEW_KEYS", few)
        patch.setattr(state, "_FEW_ROWS", few)
        patch.setattr(state, "_MOST_GONE", most_gone)
        if collide:
            patch.setattr(hashing, "hash_rows", _modulo_two)
        keyed = KeyedState(["key"], consolidated)
        left, taken = Counter[tuple[int | None, str]](), Counter[tuple[int | None, str]]()
        for delta in deltas:
            keyed.insert(_run(delta))
            for key, value, weight in delta:
                (taken if key in keys else left)[key, value] += weight
        wanted = pa.record_batch([pa.array(list(keys), pa.int64())], ["key"])
        gone = keyed.take_out(Run(wanted, hashing.hash_rows(wanted.columns, len(keys))))
        seen = _found(keyed, [*keys, 6])
        assert not seen, "what was taken out is found"
        again = [(key, "again", 1) for key in keys]
        keyed.insert(_run(again))
        assert _found(keyed, [*keys]) == Counter({(key, "again"): 1 for key in keys})
        for key in keys:
            left[key, "again"] += 1
        settled, fresh = keyed.runs
        for runs, expected in ((gone, taken), ((*settled, *fresh), left)):
            found = Counter[tuple[int | None, str]]()
            for run in runs:
                assert run.is_sorted
                for row in run.rows.to_pylist():
                    found[row["key"], row["value"]] += row["_weight"]
            assert {row: n for row, n in found.items() if n} == {row: n for row, n in expected.items() if n}


@settings(deadline=None)
@given(
    st.lists(st.lists(ENTRIES, max_size=5), max_size=12),
    st.sampled_from([hashing.hash_rows, _modulo_two]),
    st.sampled_from([1, 8, 1000]),
    st.booleans(),
)
def test_finds_what_was_inserted(
    deltas: list[list[Entry]], hash_rows: Any, fresh_rows: int, settled: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        patch.setattr(state, "_FRESH_ROWS", fresh_rows)
        patch.setattr(hashing, "_FEWEST", 1)
        patch.setattr(hashing, "_FEW", 0)
        keyed, expected = KeyedState(["key"], consolidated), Counter[tuple[int | None, str]]()
        for delta in deltas:
            keyed.insert(_run(delta))
            for key, value, weight in delta:
                expected[key, value] += weight
        if settled:
            keyed.settle()
            assert len(keyed._runs) <= 1
            assert not keyed._fresh
        probe = _run([(key, "", 0) for key in (None, 0, 1, 2, 3, 4, 5)])
        found = Counter[tuple[int | None, str]]()
        keys = probe.rows.column("key").to_pylist()
        for match in keyed.lookup(probe):
            for position, row in zip(match.probe.tolist(), match.found.to_pylist(), strict=True):
                assert row["key"] == keys[position]
                found[row["key"], row["value"]] += row["_weight"]
    assert {each: weight for each, weight in found.items() if weight} == {
        each: weight for each, weight in expected.items() if weight
    }


@settings(deadline=None)
@given(
    st.lists(st.lists(ENTRIES, max_size=6), max_size=12),
    st.integers(-1, 5),
    st.sampled_from(["ascending", "descending", "neither"]),
)
def test_what_has_expired_is_taken_out_wherever_it_lies(
    deltas: list[list[Entry]], upto: int, order: str
) -> None:
    keyed = KeyedState(["time"], lambda run, _: run)
    entries = [
        (0 if time is None else time, value, weight) for delta in deltas for time, value, weight in delta
    ]
    for delta in deltas:
        times = [0 if time is None else time for time, _, _ in delta]
        hashes = {
            "ascending": times,
            "descending": [9 - time for time in times],
            "neither": [t % 3 for t in times],
        }
        columns = [pa.array(times, pa.timestamp("us")), pa.array([value for _, value, _ in delta])]
        rows = pa.record_batch(
            [*columns, pa.array([w for _, _, w in delta], pa.int64())], ["time", "value", "_weight"]
        )
        keyed.insert(Run.sorted(rows, np.array(hashes[order], dtype=np.uint64)))
    gone, kept = keyed.expire("time", upto), keyed._runs
    for runs, wanted in ((gone, lambda time: time <= upto), (kept, lambda time: time > upto)):
        for run in runs:
            assert (np.diff(run.hashes.astype(np.int64)) >= 0).all()
            assert len(run.hashes) == run.rows.num_rows > 0
        found = Counter(
            (time, value, weight)
            for run in runs
            for time, value, weight in zip(
                run.rows.column(0).cast(pa.int64()).to_pylist(),
                *(run.rows.column(i).to_pylist() for i in (1, 2)),
                strict=True,
            )
        )
        assert found == Counter(entry for entry in entries if wanted(entry[0]))


def test_what_has_expired_frees_its_memory() -> None:
    keyed = KeyedState(["time"], consolidated)
    times = np.arange(100_000)
    rows = pa.record_batch(
        [pa.array(times, pa.timestamp("us")), pa.array(np.ones(100_000, int))], ["time", "_weight"]
    )
    keyed.insert(Run.sorted(rows, times.astype(np.uint64)))
    held = keyed.nbytes
    for upto in range(0, 100_000, 1000):
        keyed.expire("time", upto)
        left = 100_000 - upto - 1
        assert keyed.nbytes <= 2 * held * left / 100_000 + 10_000


def test_a_row_is_moved_a_logarithmic_number_of_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_FRESH_ROWS", 1)
    moved = 0

    def counted(run: Run, complete: bool) -> Run:
        nonlocal moved
        moved += run.rows.num_rows
        return run

    keyed, deltas, size = KeyedState(["key"], counted), 256, 16
    for index in range(deltas):
        keyed.insert(_run([(index * size + each, "a", 1) for each in range(size)]))
    assert moved <= deltas * size * np.log2(deltas)


@pytest.mark.parametrize(("rows", "deltas"), [(1, 1000), (1000, 500)])
def test_what_nobody_looks_up_is_not_kept_as_it_came(rows: int, deltas: int) -> None:
    """Neither in many pieces nor in many rows that say nothing together."""
    keyed = KeyedState(["key"], consolidated)
    for index in range(deltas):
        keyed.insert(_run([(index % 3, "a", (-1) ** (index // 3))] * rows))
        assert len(keyed._fresh) < state._FRESH_RUNS
        assert sum(len(run.hashes) for run in keyed._fresh) < state._FRESH_ROWS + 2 * len(keyed._runs)


def _nothing_to_merge(run: Run, complete: bool) -> Run:
    return run


def test_where_merging_makes_less_of_nothing_rows_are_sorted_when_they_are_looked_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Until then they wait in few runs, none of which is moved once it is long, whatever the size of the deltas."""
    monkeypatch.setattr(state, "_TOGETHER_ROWS", 64)
    monkeypatch.setattr(state, "_FRESH_ROWS", 1)
    keyed = KeyedState(["key"], _nothing_to_merge, lambda rows: False)
    for index in range(1000):
        keyed.insert(_unsorted([(index, "a", 1)]))
        assert len(keyed._fresh) <= index / 32 + np.log2(64)
    long = _unsorted([(key, "a", 1) for key in range(999, 899, -1)])
    keyed.insert(long)
    keyed.insert(_unsorted([(1000, "a", 1)]))
    assert any(run is long for run in keyed._fresh)
    assert not keyed._runs
    probe = _run([(key, "", 0) for key in range(1001)])
    found = Counter(key for match in keyed.lookup(probe) for key in match.found.column("key").to_pylist())
    assert found == {key: 1 if key < 900 or key == 1000 else 2 for key in range(1001)}
    assert all(run.is_sorted for run in keyed._runs)
    assert not keyed._fresh


def test_one_run_that_waits_is_sorted_when_it_is_looked_up() -> None:
    keyed = KeyedState(["key"], _nothing_to_merge, lambda rows: False)
    keyed.insert(_unsorted([(key, "a", 1) for key in range(100)]))
    assert sum(len(each.probe) for each in keyed.lookup(_run([(key, "", 0) for key in range(100)]))) == 100


def test_what_waits_is_merged_once_something_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_FRESH_ROWS", 1)
    keyed = KeyedState(["key"], consolidated, lambda rows: min(rows.column("_weight").to_pylist()) < 0)
    keyed.insert(_unsorted([(key, "a", 1) for key in range(100)]))
    assert not keyed._runs
    keyed.insert(_unsorted([(key, "a", -1) for key in range(100)]))
    assert keyed.runs == ((), ())


def _unsorted(entries: Sequence[Entry]) -> Run:
    """A run of them in their order, which is not that of their hashes."""
    run = _run(entries)
    hashes = hashing.hash_rows([pa.array([key for key, _, _ in entries], pa.int64())], len(entries))
    columns = [
        pa.array([entry[index] for entry in entries], run.rows.schema.types[index]) for index in range(3)
    ]
    return Run(pa.record_batch(columns, run.rows.schema.names), hashes)


def test_a_key_with_many_rows_is_looked_up_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "MAX_BATCH_ROWS", 100)
    monkeypatch.setattr(state, "_LITTLE", 100)
    keyed = KeyedState(["key"], consolidated)
    keyed.insert(_run([(1, "a", 1)] * 1000))
    portions = [len(match.probe) for match in keyed.lookup(_run([(1, "", 0), (1, "", 0), (2, "", 0)]))]
    assert sum(portions) == 2000
    assert max(portions) <= 100


@pytest.mark.parametrize(("most", "runs"), [(1 << 31, 1), (13_000, 2)])
def test_what_is_settled_is_one_run_of_codes(most: int, runs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as Arrow can address the texts, of which three changes have 12,600 bytes; all are found as before."""
    monkeypatch.setattr(state, "_FRESH_ROWS", 1)
    monkeypatch.setattr(state, "_MAX_TEXT_BYTES", most)
    keyed = KeyedState(["key"], consolidated)
    entries: list[list[Entry]] = [
        [(600 * n + each, f"{each % 5:03}", 1) for each in range(600)] for n in range(6)
    ]
    for each in entries:
        keyed.insert(_run(each))
    keyed.settle()
    assert not keyed._fresh
    assert len(keyed._runs) == runs
    assert all(is_coded(run.rows.column("value")) for run in keyed._runs)
    probe = _run([(key, "", 0) for key in range(3600)])
    found = {
        (row["key"], row["value"], row["_weight"])
        for match in keyed.lookup(probe)
        for row in match.found.to_pylist()
    }
    assert found == {entry for each in entries for entry in each}


def test_runs_with_and_without_codes_are_looked_up_together() -> None:
    runs = [_run([(each, f"{each % 5:03}", 1) for each in range(600 * n, 600 * n + 600)]) for n in range(3)]
    coded = [Run(coded_rows(run.rows), run.hashes) for run in runs[:2]]
    keyed = KeyedState(["key"], consolidated)
    keyed.restore([*coded, runs[2]], [])
    matches = list(keyed.lookup(_run([(key, "", 0) for key in range(1800)])))
    assert sorted(each.found.num_rows for each in matches) == [600, 1200]
    values = [row["value"] for each in matches for row in each.found.to_pylist()]
    assert sorted(values) == sorted(f"{each % 5:03}" for each in range(1800))


@pytest.mark.parametrize(("each", "portions"), [(100, 1), (9000, 3)])
def test_little_that_lies_in_several_runs_is_given_in_one_portion(each: int, portions: int) -> None:
    keyed = KeyedState(["key"], consolidated)
    keyed.restore([_run([(n * each + at, "a", 1) for at in range(each)]) for n in range(3)], [])
    matches = list(keyed.lookup(_run([(key, "", 0) for key in range(3 * each)])))
    assert [match.found.num_rows for match in matches] == [3 * each // portions] * portions


def test_runs_are_not_merged_beyond_what_arrow_can_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "_MAX_TEXT_BYTES", 2000)
    keyed = KeyedState(["key"], lambda run, _: run)
    for index in range(200):
        keyed.insert(_run([(index, "a" * 20, 1)]))
    assert sum(len(match.probe) for match in keyed.lookup(_run([(key, "", 0) for key in range(200)]))) == 200
    assert 1000 < max(run.rows.column("value").nbytes for run in keyed._runs) <= 2000


def test_what_is_taken_back_frees_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as Arrow can address the text, however much the rows have beside it."""
    monkeypatch.setattr(state, "_MAX_TEXT_BYTES", 200 * 10)
    monkeypatch.setattr(state, "_FRESH_ROWS", 1)
    keyed = KeyedState(["key"], consolidated)
    for index in range(100):
        rows = [(index * 100 + each, "value", 1) for each in range(100)]
        keyed.insert(_run(rows))
        keyed.insert(_run([(key, value, -weight) for key, value, weight in rows]))
    assert keyed.nbytes < 20_000


def test_much_that_has_come_since_the_last_lookup_is_sorted_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a lookup would sort for seconds is given to whoever runs the step; less is sorted by the lookup."""
    monkeypatch.setattr(state, "_MUCH_ROWS", 100)
    keyed = KeyedState(["key"], consolidated, lambda rows: False)
    keyed.insert(_run([(key, "", 1) for key in range(99)]))
    assert not keyed.owes_much
    keyed.insert(_run([(99, "", 1)]))
    assert keyed.owes_much
    keyed.sort_now()
    assert not keyed.owes_much
    settled, fresh = keyed.runs
    assert ([len(run.hashes) for run in settled], fresh) == ([100], ())


def test_much_is_merged_at_once_only_for_what_is_taken_back() -> None:
    """A merge of all takes long; rows that were taken back would be kept for ever without it."""
    keyed = KeyedState(["key"], state.without_zeros, state.takes_back, most_rows=100)
    for start in range(0, 300, 60):
        keyed.insert(_run([(key, "", 1) for key in range(start, start + 60)]))
        keyed.sort_now()
    assert [len(run.hashes) for run in keyed._runs] == [60] * 5
    keyed.insert(_run([(key, "", -1) for key in range(300)]))
    keyed.sort_now()
    assert not keyed._runs


@settings(deadline=None)
@given(
    st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 9)), min_size=1, max_size=12), max_size=8),
    st.integers(0, 9),
    st.integers(1, 4),
)
def test_rows_of_a_key_are_sought_in_their_order_however_few_come_at_once(
    inserts: list[list[tuple[int, int]]], start: int, limit: int
) -> None:
    """All from there on up to the bound, and everything if there is nothing more."""
    keyed = KeyedState(["key"], state.ordered("order"))
    given_: Counter[tuple[int, int]] = Counter()
    for rows in inserts:
        counted = Counter(rows)
        given_ += counted
        listed = sorted(counted)
        columns = [pa.array([key for key, _ in listed]), pa.array([at for _, at in listed], pa.uint64())]
        batch = pa.record_batch(
            [*columns, pa.array([counted[row] for row in listed])], ["key", "order", "_weight"]
        )
        keyed.insert(Run.of(batch, ["key"]))
    keys = pa.record_batch([pa.array([0, 1, 2])], ["key"])
    probe = Run(keys, hashing.hash_rows(keys.columns, 3))
    found = keyed.seek(probe, "order", np.full(3, start, dtype=np.uint64), limit)
    seen: Counter[tuple[int, int]] = Counter()
    for match in found.matches:
        for row in match.found.to_pylist():
            seen[row["key"], row["order"]] += row["_weight"]
    for key in range(3):
        bound = int(found.bounds[key]) if found.more[key] else 10
        expected = {row: n for row, n in given_.items() if row[0] == key and start <= row[1] < bound}
        assert {row: n for row, n in seen.items() if row[0] == key and row[1] < bound} == expected
