"""Windows in steps: closed by what all members have seen, so that it does not matter who has seen it."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import DataflowError, SteppedCircuit
from placement import SteppedPlan, check_stepped, distribute
from tests.nebuli.dataflow.dealing import Members, rows_of, spelled_row
from tests.nebuli.dataflow.windowed import (
    EPOCH,
    ROWS,
    WINDOWS,
    Changes,
    change,
    circuit,
    fragment,
    source,
    streams,
    window,
)
from tests.nebuli.dataflow.windowed import rows_of as windowed_rows
from tests.support.documents import op, query
from tests.support.sizes import examples
from topology import parse_topology

BY = ["window_start", "window_end", "k"]
Timed = Counter[tuple[tuple[Any, ...], int]]
"""Rows (time, key, value) in windows, which are the seconds that they start at."""
Late = tuple[tuple[tuple[Any, ...], int | None], int]
"""A row, its window, which a row without a time has not, and its weight."""
TOPOLOGY = parse_topology(
    "logical:\n"
    + "".join(
        f"  - {{name: {name}, schema: [{{name: t, type: timestamp}}, {{name: k, type: int64}}, "
        "{name: x, type: float64}]}\n"
        for name in "ab"
    )
    + "nodes: [{address: 'n:1', sinks: [{name: out, type: Print, mode: changes}]}]"
)
LATENESS = st.sampled_from([0, 30, 200])
MEMBERS = st.lists(st.integers(1, 4), min_size=1, max_size=5)
"""How many there are in each of the first steps; the last number stays."""
STEPS = st.lists(
    st.fixed_dictionaries(
        {
            name: st.lists(st.tuples(ROWS | ROWS.map(lambda row: (None, *row[1:])), st.just(1)), max_size=5)
            for name in "ab"
        }
    ),
    max_size=8,
)


def plan(members: int, spread: str, *operators: dict[str, Any]) -> SteppedPlan:
    sink = op("sink", "out", input=operators[-1]["id"], sink="out")
    return distribute(check_stepped(query(*operators, sink), TOPOLOGY), members, spread)


def at(seconds: int) -> dt.datetime:
    return (EPOCH + dt.timedelta(seconds=seconds)).replace(tzinfo=dt.UTC)


class Watermark:
    """By brute force: the greatest time of an input so far, less the lateness."""

    def __init__(self, lateness: int) -> None:
        self.reached = -(10**9)
        self.has_begun = False
        self._lateness = lateness

    def move(self, changes: Changes) -> None:
        times = [row[0] - self._lateness for row, _ in changes if row[0] is not None]
        self.has_begun |= bool(times)
        self.reached = max([self.reached, *times])


def in_time(changes: Changes, size: int, slide: int, watermark: int) -> tuple[Timed, list[Late]]:
    """The rows in the windows that are not over, and those that are late, with their weights."""
    found: Timed = Timed()
    late: list[Late] = []
    for row, weight in changes:
        if row[0] is None:
            late.append(((row, None), weight))
            continue
        starts = [row[0] // slide * slide - back * slide for back in range(-(-size // slide))]
        for start in (each for each in starts if each + size > row[0]):
            if start + size <= watermark:
                late.append(((row, start), weight))
            else:
                found[row, start] += weight
    return found, late


@settings(max_examples=examples(150), deadline=None)
@given(STEPS, WINDOWS, LATENESS, MEMBERS, st.sampled_from(["ab", "a", ""]), st.integers(0, 99))
def test_a_window_is_given_in_the_step_in_which_its_end_is_passed(
    steps: list[dict[str, Changes]],
    sizes: tuple[int, int],
    lateness: int,
    members: list[int],
    spread: str,
    seed: int,
) -> None:
    """Of two inputs the one that is behind counts; rows are judged by the watermark that was there before the step.

    The late ones are an output of their own, each in its step.
    """
    size, slide = sizes
    operators = (
        source("a"),
        source("b"),
        op("union", "u", inputs=["a", "b"]),
        window("w", "u", size, slide, lateness, late="late.csv"),
        op("aggregate", "g", input="w", by=BY, aggregates={"n": "count(*)", "s": "sum(x)", "m": "min(x)"}),
    )
    first, *then = (plan(each, spread, *operators) for each in members)
    running = Members(first, seed, spread, then)
    marks = {name: Watermark(lateness) for name in "ab"}
    groups: dict[tuple[int, Any], list[float | None]] = {}
    all_late = all_without_time = 0
    for step in steps:
        before = min(mark.reached for mark in marks.values())
        dropped = Counter[Any]()
        for name, changes in step.items():
            rows, late = in_time(changes, size, slide, before)
            without_time = sum(start is None for (_, start), _ in late)
            all_without_time += without_time
            all_late += len(late) - without_time
            for ((seconds, key, value), start), weight in late:
                time = None if seconds is None else at(seconds)
                ends = (None, None) if start is None else (at(start), at(start + size))
                dropped[time, key, value, *ends] += weight
            for ((_, key, value), start), count in rows.items():
                groups.setdefault((start, key), []).extend([value] * count)
            marks[name].move(changes)
        after = min(mark.reached for mark in marks.values())
        over = [group for group in groups if group[0] + size <= after]
        wanted = Counter[Any]()
        for start, key in over:
            values = groups.pop((start, key))
            some = [each for each in values if each is not None]
            summed, least = (sum(some), min(some)) if some else (None, None)
            wanted[at(start), at(start + size), key, len(values), summed, least] = 1
        given = running.step(step)
        assert rows_of(given["out"]) == wanted
        assert rows_of(given["w>late"]) == Counter({row: weight for row, weight in dropped.items() if weight})
        counted = [each.statistics()["w"] for each in running.circuits]
        assert sum(each.late_rows for each in counted) == all_late
        assert sum(each.rows_without_time for each in counted) == all_without_time


GIVEN = st.lists(st.tuples(ROWS, st.just(1)), max_size=3)
SOURCES = st.lists(
    st.tuples(GIVEN, st.dictionaries(st.sampled_from(["x", "y", "z"]), st.tuples(GIVEN, st.booleans()))),
    max_size=8,
)
"""By step: what no source gives, and what each of three sources gives, as long as it has not ended."""


@settings(max_examples=examples(150), deadline=None)
@given(SOURCES, LATENESS, MEMBERS, st.sampled_from(["a", ""]), st.integers(0, 99))
def test_each_source_is_waited_for_until_it_ends(
    steps: list[tuple[Changes, dict[str, tuple[Changes, bool]]]],
    lateness: int,
    members: list[int],
    spread: str,
    seed: int,
) -> None:
    """At whatever members they are; what no source gives is one more, once it has begun."""
    operators = (
        source("a"),
        window("w", "a", 60, 60, lateness),
        op("aggregate", "g", input="w", by=["window_start"], aggregates={"n": "count(*)"}),
    )
    first, *then = (plan(each, spread, *operators) for each in members)
    running = Members(first, seed, spread, then)
    marks = {name: Watermark(lateness) for name in ("x", "y", "z", "")}
    ended: set[str] = set()
    reached, windows, late = -(10**9), Counter[int](), 0
    for pushed, given_ in steps:
        sources = {
            name: given_.get(name, ([], False)) if name not in ended else ([], True)
            for name in ("x", "y", "z")
        }
        out = running.step({"a": pushed}, {"a": sources})["out"]
        for name, changes in [("", pushed), *((name, rows) for name, (rows, _) in sources.items())]:
            marks[name].move(changes)
            for (seconds, *_), _ in changes:
                assert seconds is not None
                if seconds // 60 * 60 + 60 <= reached:
                    late += 1
                else:
                    windows[seconds // 60 * 60] += 1
        ended |= {name for name, (_, ends) in sources.items() if ends}
        awaited = [marks[name].reached for name in ("x", "y", "z") if name not in ended]
        awaited += [marks[""].reached] if marks[""].has_begun else []
        reached = max(reached, min(awaited) if awaited else max(each.reached for each in marks.values()))
        over = [start for start in windows if start + 60 <= reached]
        assert rows_of(out) == Counter({(at(start), windows.pop(start)): 1 for start in over})
        assert sum(each.statistics()["w"].late_rows for each in running.circuits) == late


@settings(max_examples=examples(100), deadline=None)
@given(st.data(), WINDOWS, LATENESS, st.integers(1, 4), st.integers(0, 99), st.booleans())
def test_with_the_end_of_all_inputs_all_windows_come_out_as_in_a_free_run(
    data: st.DataObject, sizes: tuple[int, int], lateness: int, members: int, seed: int, alone: bool
) -> None:
    """The end comes with the last rows, or alone. Rows of these windows are late then, and those of others are not."""
    operators = (
        source("a"),
        window("w", "a", *sizes, lateness),
        op("aggregate", "g", input="w", by=BY, aggregates={"n": "count(*)", "s": "sum(x)", "m": "min(x)"}),
    )
    batches = data.draw(streams(lateness, weights=False))
    free = circuit(fragment(*operators, mode="append"))
    wanted: Counter[Any] = Counter()
    for out in [*(free.push("a", change(batch)) for batch in batches if batch), free.end("a")]:
        wanted += Counter(spelled_row(row) for row, _ in windowed_rows(out))
    running = Members(plan(members, "a", *operators), seed, "a")
    found: Counter[Any] = Counter()
    steps = [batches, [[]]] if alone else [batches]
    *before, last = [batch for step in steps for batch in step]
    for batch in before:
        found += rows_of(running.step({"a": batch})["out"])
    found += rows_of(running.step({"a": last}, ended=True)["out"])
    assert found == wanted
    size, slide = sizes
    times = [row[0] for batch in batches for row, _ in batch if row[0] is not None]
    if not times:
        return
    last = max(times) // slide * slide
    late = sum(each.statistics()["w"].late_rows for each in running.circuits)
    assert not rows_of(running.step({"a": [((last, 1, 0.25), 1)]})["out"])
    holding = sum(start + size > last for start in range(last, last - size, -slide))
    assert sum(each.statistics()["w"].late_rows for each in running.circuits) == late + holding
    out = rows_of(running.step({"a": [((last + slide, 1, 0.5), 1)]}, ended=True)["out"])
    assert out == Counter({(at(last + slide), at(last + slide + size), 1, 1, 0.5, 0.5): 1})


@settings(max_examples=examples(100), deadline=None)
@given(STEPS, WINDOWS, LATENESS, MEMBERS, st.integers(0, 99))
def test_a_join_on_windows_keeps_them_until_both_inputs_have_passed(
    steps: list[dict[str, Changes]], sizes: tuple[int, int], lateness: int, members: list[int], seed: int
) -> None:
    size, slide = sizes
    operators = (
        source("a"),
        source("b"),
        window("v", "a", size, slide, lateness),
        window("w", "b", size, slide, lateness),
        op("join", "j", inputs=["v", "w"], on=BY),
    )
    first, *then = (plan(each, "ab", *operators) for each in members)
    running = Members(first, seed, "ab", then)
    marks = {name: Watermark(lateness) for name in "ab"}
    kept = {name: Timed() for name in "ab"}
    given_before = Counter[Any]()
    for step in steps:
        for name, changes in step.items():
            kept[name] += in_time(changes, size, slide, marks[name].reached)[0]
            marks[name].move(changes)
        pairs = Counter[Any]()
        for (left, start), count in kept["a"].items():
            for (right, other), times in kept["b"].items():
                if start == other and left[1] == right[1] is not None:
                    key = (at(start), at(start + size), left[1])
                    pairs[(*key, at(left[0]), left[2], at(right[0]), right[2])] += count * times
        assert rows_of(running.step(step)["out"]) == pairs - given_before
        given_before = pairs
    reached = min(mark.reached for mark in marks.values())
    held = any(
        start + size > reached for rows in kept.values() for (row, start) in rows if row[1] is not None
    )
    state = sum(each.statistics()["j"].state_bytes for each in running.circuits)
    assert bool(state) == held


def test_what_one_member_has_seen_closes_windows_at_all_of_them() -> None:
    """Also at those that never saw a row."""
    operators = (
        source("a"),
        window("w", "a", 60, 60, 0),
        op("aggregate", "g", input="w", by=["window_start", "k"], aggregates={"n": "count(*)"}),
    )
    members = Members(plan(4, "a", *operators), 1, "a")
    for key in range(40):
        assert not members.step({"a": [((10, key, 1.0), 1)]})["out"].num_rows
    out = members.step({"a": [((60, 0, 1.0), 1)]})["out"]
    assert rows_of(out) == Counter({(at(0), key, 1): 1 for key in range(40)})


def test_an_input_without_event_time_that_no_source_gives_is_not_waited_for() -> None:
    operators = (
        source("a"),
        op("project", "names", input="b", columns={"k": "k", "y": "x"}),
        source("b"),
        window("w", "a", 60, 60, 0),
        op("join", "j", inputs=["w", "names"], on=["k"]),
        op("aggregate", "g", input="j", by=["window_start", "y"], aggregates={"n": "count(*)"}),
    )
    members = Members(plan(2, "ab", *operators), 1, "ab")
    members.step({"a": [((10, 1, 1.0), 1)], "b": [((None, 1, 0.5), 1)]})
    assert rows_of(members.step({"a": [((70, 1, 1.0), 1)]})["out"]) == Counter({(at(0), 0.5, 1): 1})
    members.step({"b": [((None, 1, 0.75), 1)]})
    assert sum(each.statistics()["g"].late_rows for each in members.circuits) == 1


@pytest.mark.parametrize("members", [1, 2])
def test_windows_above_a_table_stay_open_until_its_sources_have_ended_or_event_time_does(
    members: int,
) -> None:
    """At all members, of which one reads it. The rows of the table are late for none of them."""
    operators = (
        source("a"),
        op("project", "names", input="b", columns={"k": "k", "y": "x"}),
        source("b"),
        window("w", "a", 60, 60, 0),
        op("join", "j", inputs=["w", "names"], on=["k"]),
        op("aggregate", "g", input="j", by=["window_start", "k"], aggregates={"n": "count(*)"}),
    )
    running = Members(plan(members, "", *operators), 1, "")
    names: Changes = [((None, key, 0.5), 1) for key in range(4)]
    rows: Changes = [((10 * key, key, 1.0), 1) for key in range(4)]
    running.step({}, {"a": {"x": ([*rows, ((70, 1, 1.0), 1)], False)}, "b": {"z": (names[:2], False)}})
    wanted = Counter({(at(0), key, 1): 1 for key in range(4)})
    out = running.step({}, {"a": {"x": ([], False)}, "b": {"z": (names[2:], False)}})["out"]
    assert not out.num_rows
    out = running.step({}, {"a": {"x": ([], False)}, "b": {"z": ([], True)}})["out"]
    assert rows_of(out) == wanted
    out = running.step({}, {"a": {"x": ([], False)}, "b": {"z": ([], False)}}, ended=True)["out"]
    assert rows_of(out) == Counter({(at(60), 1, 1): 1})
    assert sum(each.late_rows for circuit in running.circuits for each in circuit.statistics().values()) == 0


def test_a_watermark_that_members_do_not_tell_one_another_of_is_refused() -> None:
    alone = plan(1, "a", source("a"), window("w", "a", 60, 60, 0))
    with pytest.raises(DataflowError, match=r"operator a: .* no align"):
        SteppedCircuit(alone.model_copy(update={"members": 2}), 0)
