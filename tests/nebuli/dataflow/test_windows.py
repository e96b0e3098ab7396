"""Windows: each is given once, when it is over, and all of them together are DuckDB's answer."""

from __future__ import annotations

import datetime as dt
from collections import Counter
from itertools import permutations
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.dataflow import DataflowError, OperatorGraph, Progress, hashing, zset
from placement.plan import NetworkSource
from tests.nebuli.dataflow import oracle
from tests.nebuli.dataflow.driven import Driven
from tests.nebuli.dataflow.windowed import (
    COLUMNS,
    EPOCH,
    ROWS,
    WINDOWS,
    Changes,
    Row,
    change,
    circuit,
    cut,
    fragment,
    rows_of,
    source,
    starts,
    streams,
    table,
    window,
)
from tests.support.documents import op
from tests.support.sizes import examples

BY = ["window_start", "window_end", "k"]
AGGREGATES = {"n": "count(*)", "s": "sum(x)", "low": "min(x)", "high": "max(k)", "d": "count(DISTINCT x)"}
LATENESS = st.sampled_from([0, 30, 200])


def at(seconds: float) -> dt.datetime:
    return EPOCH + dt.timedelta(seconds=seconds)


def in_windows(size: int, name: str = "a") -> str:
    """The rows of a table in all their windows, in SQL."""
    return (
        f"(SELECT {name}.*, ws AS window_start, ws + INTERVAL {size} SECOND AS window_end "
        f"FROM {name} JOIN starts ON t >= ws AND t < ws + INTERVAL {size} SECOND)"
    )


def answer(sql: str, tables: dict[str, pa.Table]) -> Counter[Any]:
    return oracle.multiset(oracle.query(sql, tables)[1])


def counted(batches: list[pa.RecordBatch]) -> Counter[Any]:
    """All rows that came out; none of them was taken back."""
    rows = rows_of(batches)
    assert all(weight > 0 for _, weight in rows)
    return oracle.multiset(row for row, weight in rows for _ in range(weight))


def all_alike(_: Any, rows: int) -> Any:
    return np.zeros(rows, dtype=np.uint64)


def latest(batches: list[Changes]) -> int | None:
    return max((row[0] for batch in batches for row, _ in batch if row[0] is not None), default=None)


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), WINDOWS, LATENESS, st.sampled_from([hashing.hash_rows, all_alike]))
def test_a_window_is_given_once_when_the_watermark_passes_its_end(
    data: st.DataObject, sizes: tuple[int, int], lateness: int, hash_rows: Any
) -> None:
    size, slide = sizes
    batches = data.draw(streams(lateness))
    running = circuit(
        fragment(
            source("a"),
            window("w", "a", size, slide, lateness),
            op("aggregate", "g", input="w", by=BY, aggregates=AGGREGATES),
            mode="append",
        )
    )
    rows = [each for batch in batches for each in batch]
    chosen = "window_start, window_end, k, count(*), sum(x), min(x), max(k), count(DISTINCT x)"
    query = f"SELECT {chosen} FROM {in_windows(size)} GROUP BY ALL"
    expected = answer(query, {"a": table(rows), "starts": starts(slide)})
    found: Counter[Any] = Counter()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        for index, batch in enumerate(batches):
            found += counted(running.push("a", change(batch)))
            reached = latest(batches[: index + 1])
            over = {row for row in expected if reached is not None and row[1] <= at(reached - lateness)}
            assert found == Counter(dict.fromkeys(over, 1))
        found += counted(running.end("a"))
    assert found == expected
    assert running.statistics()["w"].late_rows == 0
    assert running.statistics()["g"].state_bytes == 0


@settings(max_examples=examples(200), deadline=None)
@given(
    st.data(),
    WINDOWS,
    LATENESS,
    st.sampled_from([0, 60]),
    st.sampled_from(["inner", "left", "right", "full"]),
    st.sampled_from([hashing.hash_rows, all_alike]),
)
def test_a_join_on_windows_is_duckdbs_and_keeps_nothing_that_is_over(
    data: st.DataObject, sizes: tuple[int, int], lateness: int, shift: int, how: str, hash_rows: Any
) -> None:
    """Also where one input has computed its columns from those of a window, which thus belong to no window.

    An outer join takes no row back where they are: what has no match is given when its window is over.
    """
    size, slide = sizes
    moved = {name: f"{name} - INTERVAL {shift} SECOND" for name in BY[:2]} if shift else {}
    inputs = {name: data.draw(streams(lateness, weights=False)) for name in "ab"}
    takes_back = bool(shift) and how != "inner"
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("v", "a", size, slide, lateness),
            window("w", "b", size, slide, lateness),
            op("project", "p", input="w", columns={name: name for name in (*BY, "t", "x")} | moved),
            op("join", "j", inputs=["v", "p"], on=BY, how=how),
            mode="changes" if takes_back else "append",
        )
    )
    waiting = {name: list(batches) for name, batches in inputs.items()}
    out: list[pa.RecordBatch] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hashing, "hash_rows", hash_rows)
        while some := [name for name in "ab" if waiting[name]]:
            name = data.draw(st.sampled_from(some))
            out += running.push(name, change(waiting[name].pop(0)))
        for name in data.draw(st.permutations("ab")):
            out += running.end(name)
    tables = {name: table([row for batch in batches for row in batch]) for name, batches in inputs.items()}
    query = (
        f"SELECT window_start, window_end, k, l.t, l.x, r.t, r.x "
        f"FROM {in_windows(size)} l {how} JOIN (SELECT * REPLACE (window_start - INTERVAL {shift} SECOND AS "
        f"window_start, window_end - INTERVAL {shift} SECOND AS window_end) FROM {in_windows(size, 'b')}) r "
        "USING (window_start, window_end, k)"
    )
    given_ = [zset.consolidate(out)] if takes_back and out else out
    assert counted(given_) == answer(query, {**tables, "starts": starts(slide)})
    statistics = running.statistics()
    assert [statistics[each].late_rows for each in "vwj"] == [0, 0, 0]
    assert statistics["j"].state_bytes == 0


def test_rows_without_a_match_are_given_when_their_window_is_over_and_not_before() -> None:
    """Once, though a match would have come later: that is late."""
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("v", "a", 60, 60, 0),
            window("w", "b", 60, 60, 0),
            op("join", "j", inputs=["v", "w"], on=["window_start", "k"], how="full"),
            mode="append",
        )
    )
    rows: Changes = [((10, 1, 0.0), 1), ((20, 2, 0.0), 1), ((30, None, 0.0), 1)]
    out = running.push("a", change(rows))
    assert [row[:2] for row, _ in rows_of(out)] == [(at(0).replace(tzinfo=dt.UTC), None)], (
        "it matches nothing"
    )
    assert len(rows_of(running.push("b", change([((15, 1, 0.0), 1)])))) == 1
    assert running.push("a", change([((60, 1, 0.0), 1)])) == []
    (last,) = rows_of(running.push("b", change([((60, 3, 0.0), 1)])))
    assert (last[0][1], last[1]) == (2, 1)
    assert sorted(row[1] for row, _ in rows_of([*running.end("a"), *running.end("b")])) == [1, 3]
    assert running.statistics()["j"].state_bytes == 0


@settings(max_examples=examples(60), deadline=None)
@given(st.data(), WINDOWS, LATENESS)
def test_windows_of_rows_with_or_without_a_match_in_a_table_are_given_once(
    data: st.DataObject, sizes: tuple[int, int], lateness: int
) -> None:
    """They close when the table has ended: until then a row may get its first match."""
    size, slide = sizes
    inputs = {name: data.draw(streams(lateness)) for name in "ab"}
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("v", "a", size, slide, lateness),
            op("join", "j", inputs=["v", "b"], on=["k"], how="left"),
            op(
                "aggregate",
                "g",
                input="j",
                by=["window_end"],
                aggregates={"n": "count(*)", "m": 'sum("b.x")'},
            ),
            mode="append",
        )
    )
    out: list[pa.RecordBatch] = []
    order = data.draw(st.permutations([name for name in "ab" for _ in inputs[name]]))
    waiting = {name: list(batches) for name, batches in inputs.items()}
    for name in order:
        out += running.push(name, change(waiting[name].pop(0)))
    for name in data.draw(st.permutations("ab")):
        out += running.end(name)
    tables = {name: table([row for batch in batches for row in batch]) for name, batches in inputs.items()}
    chosen = "window_end, count(*), sum(r.x)"
    query = f"SELECT {chosen} FROM {in_windows(size)} l LEFT JOIN b r USING (k) GROUP BY window_end"
    assert counted(out) == answer(query, {**tables, "starts": starts(slide)})


def late_by_hand(
    batches: list[Changes], size: int, slide: int, lateness: int
) -> tuple[Counter[tuple[Row, int | None]], Counter[tuple[Row, int]]]:
    """Which rows are late for which windows, by their starts, and which are not, one row at a time."""
    late: Counter[tuple[Row, int | None]] = Counter()
    in_time: Counter[tuple[Row, int]] = Counter()
    for index, batch in enumerate(batches):
        before = latest(batches[:index])
        for row, weight in batch:
            if row[0] is None:
                late[row, None] += weight
                continue
            for start in range(row[0] - size - row[0] % slide, row[0] + 1):
                if start % slide == 0 and start <= row[0] < start + size:
                    is_late = before is not None and start + size <= before - lateness
                    (late if is_late else in_time)[row, start] += weight
    return late, in_time


@settings(max_examples=examples(150), deadline=None)
@given(st.data(), WINDOWS, LATENESS)
def test_late_rows_are_counted_kept_and_left_out(
    data: st.DataObject, sizes: tuple[int, int], lateness: int
) -> None:
    """In any order, also without a time."""
    size, slide = sizes
    rows = data.draw(st.lists(ROWS | ROWS.map(lambda row: (None, row[1], row[2])), max_size=30))
    batches = data.draw(cut([(row, 1) for row in rows]))
    late, in_time = late_by_hand(batches, size, slide, lateness)
    running = circuit(
        fragment(
            source("a"),
            window("w", "a", size, slide, lateness, late="late.csv"),
            op("aggregate", "g", input="w", by=["window_end", "k"], aggregates={"n": "count(*)"}),
        )
    )
    out: list[pa.RecordBatch] = []
    kept: list[pa.RecordBatch] = []
    for batch in batches:
        out += running.push("a", change(batch))
        kept += [rows for _, rows in running.take_late()]
    out += running.end("a")
    groups = Counter[Any]()
    for ((_, key, _), start), count in in_time.items():
        groups[at(start + size), key] += count
    assert counted(out) == Counter((*group, count) for group, count in groups.items())
    without_time = sum(count for (_, start), count in late.items() if start is None)
    statistics = running.statistics()["w"]
    assert (statistics.late_rows, statistics.rows_without_time) == (late.total() - without_time, without_time)
    assert counted(kept) == Counter(
        {
            (
                None if row[0] is None else at(row[0]),
                *row[1:],
                None if start is None else at(start),
                None if start is None else at(start + size),
            ): count
            for (row, start), count in late.items()
        }
    )
    assert [*running.late_schemas["w"].names] == ["t", "k", "x", "window_start", "window_end", "_weight"]


def test_a_window_is_over_when_the_watermark_is_at_its_end_and_not_before() -> None:
    running = circuit(fragment(source("a"), window("w", "a", 60, 60, 30)))
    for greatest, late in ((89, 0), (90, 1)):
        running.push("a", rows_at(greatest))
        running.push("a", rows_at(59, 60))
        assert running.statistics()["w"].late_rows == late


def united(idle_after: str | None = None, **settings: Any) -> Driven:
    """Two sources into one window, and rows per window."""
    if idle_after is not None:
        settings["idle_after"] = idle_after
    return circuit(
        fragment(
            source("a"),
            source("b"),
            op("union", "u", inputs=["a", "b"]),
            window("w", "u", 60, 60, 0, **settings),
            op("aggregate", "g", input="w", by=["window_start"], aggregates={"n": "count(*)"}),
        )
    )


def rows_at(*seconds: int) -> pa.RecordBatch:
    return change([((each, 1, 1.0), 1) for each in seconds])


def windows_of(batches: list[pa.RecordBatch]) -> list[tuple[int, int]]:
    """Start in seconds, and rows."""
    return [
        (int((oracle.plain(start) - EPOCH).total_seconds()), count) for (start, count), _ in rows_of(batches)
    ]


def test_the_source_that_is_behind_is_waited_for() -> None:
    running = united()
    assert windows_of(running.push("a", rows_at(10, 500))) == []
    assert windows_of(running.push("b", rows_at(20, 70))) == [(0, 2)]
    assert windows_of(running.push("b", rows_at(80, 130))) == [(60, 2)]
    assert windows_of(running.end("b")) == [(120, 1)]
    assert windows_of(running.end("a")) == [(480, 1)]
    assert running.statistics()["w"].late_rows == 0


def test_an_idle_source_is_not_waited_for_until_it_is_back() -> None:
    running = united("5 seconds")
    assert running.idle_after_s == {"a": 5.0, "b": 5.0}
    running.push("a", rows_at(10, 100))
    assert windows_of(running.idle("b")) == [(0, 1)]
    assert windows_of(running.push("a", rows_at(200))) == [(60, 1)]
    assert windows_of(running.push("b", rows_at(30, 190))) == []
    assert running.statistics()["w"].late_rows == 1
    assert windows_of(running.push("a", rows_at(300))) == []
    assert windows_of(running.push("b", rows_at(310))) == [(180, 2)]


@pytest.mark.parametrize("leave", list(permutations(["idle a", "end a", "idle b"])))
def test_where_all_sources_are_idle_or_have_ended_time_stays_where_the_first_was(
    leave: tuple[str, ...],
) -> None:
    """So that a source that comes back does not find all its rows late; in whatever order they left."""
    running = united("5 seconds")
    out = running.push("a", rows_at(10, 70)) + running.push("b", rows_at(15))
    for each in leave:
        how, source = each.split()
        if how == "end":
            out += running.end(source)
        elif source == "b" or "end a" not in leave[: leave.index(each)]:
            out += running.idle(source)
    assert windows_of(out) == [(0, 2)]
    assert running.push("b", rows_at(65)) == []
    assert windows_of(running.end("b")) == [(60, 2)]
    assert running.statistics()["w"].late_rows == 0


def test_a_circuit_tells_how_far_it_has_come_and_takes_that_from_another() -> None:
    operators = (source("a"), window("w", "a", 60, 60, 10, idle_after="1 second"))
    running = circuit(fragment(*operators))
    running.push("a", rows_at(100))
    here = running.progress
    assert here == Progress(int(at(90).replace(tzinfo=dt.UTC).timestamp() * 1e6))
    running.idle("a")
    assert running.progress == Progress(here.watermark, idle=True)
    behind = fragment(
        *operators, op("aggregate", "g", input="w", by=["window_end"], aggregates={"n": "count(*)"})
    )
    reader = Driven(behind.operators, closings=behind.closings)
    reader.push("a", rows_at(10, 80))
    assert [row[1] for row, _ in rows_of(reader.advance("a", here))] == [1]


def test_event_time_where_there_is_none_is_refused() -> None:
    good = fragment(
        source("a"),
        window("w", "a", 60, 60, 0),
        op("aggregate", "g", input="w", by=["window_end"], aggregates={"n": "count(*)"}),
    )
    (origin,), (closing,) = good.watermarks, good.closings
    for watermarks, closings, said in (
        ([origin.model_copy(update={"operator": "b"})], [], "at b, which is not an operator"),
        (
            [origin.model_copy(update={"time": "x"})],
            [],
            "operator a: .* in 'x', which is neither a timestamp",
        ),
        (
            [],
            [closing.model_copy(update={"column": "y"})],
            "operator g: .* in 'y', which is neither a timestamp",
        ),
    ):
        with pytest.raises(DataflowError, match=said):
            OperatorGraph(good.operators, watermarks=watermarks, closings=closings)


@pytest.mark.long
def test_state_does_not_grow_with_the_stream() -> None:
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("v", "a", 60, 20, 30),
            window("w", "b", 60, 20, 30),
            op("join", "j", inputs=["v", "w"], on=["window_start", "k"]),
            op("distinct", "d", input="j"),
            op("aggregate", "g", input="d", by=["window_start"], aggregates={"n": "count(*)", "m": "max(k)"}),
        )
    )
    held: list[int] = []
    for second in range(0, 5000, 10):
        for name in "ab":
            running.push(name, change([((second + each, each, float(second)), 1) for each in range(10)]))
        held.append(sum(each.state_bytes for each in running.statistics().values()))
    assert max(held[250:]) <= 1.2 * max(held[50:250])


def test_rows_of_windows_that_an_operator_is_done_with_are_dropped_and_counted() -> None:
    """Where the window itself had not heard of it: an input that was idle comes back."""
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("v", "a", 60, 60, 0),
            window("w", "b", 60, 60, 0, idle_after="1 second"),
            op("union", "u", inputs=["v", "w"]),
            op("aggregate", "g", input="u", by=["window_end"], aggregates={"n": "count(*)"}),
        )
    )
    running.idle("b")
    assert [row[1] for row, _ in rows_of(running.push("a", rows_at(10, 60)))] == [1]
    assert running.push("b", rows_at(20, 30)) == []
    late = {id_: each.late_rows for id_, each in running.statistics().items() if each.late_rows}
    assert late == {"g": 2}


def test_a_join_by_a_key_that_one_input_computes_from_its_windows_loses_no_row() -> None:
    columns = {"window_start": "window_start - INTERVAL 1 HOUR", "k": "k"}
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("v", "a", 3600, 3600, 0),
            window("w", "b", 3600, 3600, 0),
            op("project", "p", input="w", columns=columns),
            op("join", "j", inputs=["v", "p"], on=["window_start", "k"]),
        )
    )
    out = running.push("a", rows_at(1800, 4200)) + running.push("b", rows_at(3900))
    out += running.push("b", rows_at(6000))
    assert [row[2] for row, _ in rows_of(out)] == [at(1800).replace(tzinfo=dt.UTC)] * 2
    assert running.statistics()["j"].late_rows == 0


def test_a_join_with_something_without_event_time_waits_for_its_end() -> None:
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("w", "a", 60, 60, 0),
            op("project", "p", input="b", columns={"k": "k", "y": "x"}),
            op("join", "j", inputs=["w", "p"], on=["k"]),
            op("aggregate", "g", input="j", by=["window_start"], aggregates={"n": "count(*)"}),
        )
    )
    assert running.push("a", rows_at(10, 70, 500)) == []
    assert running.push("b", rows_at(1, 2)) == []
    assert windows_of(running.end("b")) == [(0, 2), (60, 2)]
    assert windows_of(running.end("a")) == [(480, 2)]


def test_what_an_aggregate_gives_only_at_its_end_is_not_late() -> None:
    """The end of its input closes windows above only behind what it then gives."""
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            window("w", "a", 60, 60, 0),
            op("project", "p", input="w", columns={"window_start": "window_start", "one": "1"}),
            op("aggregate", "all", input="b", by=[], aggregates={"n": "count(*)"}),
            op("project", "q", input="all", columns={"one": "1", "n": "n"}),
            op("join", "j", inputs=["p", "q"], on=["one"]),
            op("aggregate", "g", input="j", by=["window_start"], aggregates={"most": "max(n)"}),
        )
    )
    out = running.push("a", rows_at(10, 70, 130))
    out += running.end("b")
    out += running.end("a")
    assert windows_of(out) == [(0, 0), (60, 0), (120, 0)]
    assert running.statistics()["g"].late_rows == 0


def test_a_source_that_ends_leaves_idle_ones_behind_it_that_are_not_waited_for() -> None:
    """Where the watermark begins above both: at a computed time."""
    columns = {"t": "t + INTERVAL 0 SECONDS", "k": "k", "x": "x"}
    running = circuit(
        fragment(
            source("a"),
            source("b"),
            op("union", "ab", inputs=["a", "b"]),
            op("project", "p", input="ab", columns=columns),
            op("source", "c", logical="a"),
            op("union", "u", inputs=["p", "c"]),
            window("w", "u", 60, 60, 0, idle_after="5 seconds"),
            op("aggregate", "g", input="w", by=["window_start"], aggregates={"n": "count(*)"}),
        )
    )
    out = running.push("c", rows_at(500)) + running.push("a", rows_at(10)) + running.push("b", rows_at(10))
    out += running.idle("a")
    assert out == []
    assert windows_of(running.end("b")) == [(0, 2)]
    assert running.push("a", rows_at(490)) == []
    assert windows_of(running.end("c")) == []
    assert windows_of(running.end("a")) == [(480, 2)]


def test_a_source_beyond_a_network_is_never_called_idle_from_here() -> None:
    """Also where the watermark begins here, at a computed time: it may be the network that is down."""
    plan = fragment(
        source("a"),
        source("b"),
        op("union", "u", inputs=["a", "b"]),
        op("project", "p", input="u", columns={"t": "t + INTERVAL 1 HOUR"}),
        window("w", "p", 60, 60, 0, idle_after="5 seconds"),
    )
    schema = [column.model_dump() for column in COLUMNS]
    beyond = NetworkSource.model_validate({"id": "b", "channel": "b", "address": "m:1", "schema": schema})
    operators = [beyond if operator.id == "b" else operator for operator in plan.operators]
    assert circuit(plan).idle_after_s == {"a": 5.0, "b": 5.0}
    running = circuit(plan.model_copy(update={"operators": tuple(operators)}))
    assert running.idle_after_s == {"a": 5.0}
    running.push("b", rows_at(100))
    running.idle("a")
    assert not running.progress.idle


@pytest.mark.parametrize("time", ["w", "p"])
def test_a_date_that_is_too_far_away_is_an_error_of_its_operator(time: str) -> None:
    """Where the watermark begins, or else where the window is made of it."""
    columns = {"day": "CAST(t AS DATE) + 200000000", "k": "k"}
    plan = fragment(
        source("a"),
        op("project", "p", input="a", columns=columns),
        op("window", "w", input="p", time="day", size="2 days"),
    )
    watermarks = plan.watermarks if time == "p" else []
    running = Driven(plan.operators, watermarks=watermarks)
    with pytest.raises(DataflowError, match=rf"operator {time}: .* beyond .* microseconds"):
        running.push("a", rows_at(10))


def test_times_before_1970_have_windows_too() -> None:
    running = united()
    long_ago = -(55 * 365 * 86400)
    out = running.push("a", rows_at(long_ago)) + running.end("b") + running.end("a")
    ((row, _),) = rows_of(out)
    assert oracle.plain(row[0]) <= at(long_ago) < oracle.plain(row[0]) + dt.timedelta(seconds=60)
    assert row[0].second == 0


def test_a_computed_date_is_a_time_and_a_watermark_begins_where_it_is_computed() -> None:
    days = fragment(
        source("a"),
        op("project", "p", input="a", columns={"day": "CAST(t AS DATE)", "k": "k"}),
        op("window", "w", input="p", time="day", size="2 days", slide="1 day"),
        op("aggregate", "g", input="w", by=["window_start"], aggregates={"n": "count(*)"}),
    )
    assert [(each.operator, each.time) for each in days.watermarks] == [("p", "day")]
    running = circuit(days)
    day = 86400
    out = running.push("a", rows_at(10, day + 10, 2 * day + 10))
    assert windows_of(out) == [(-day, 1), (0, 2)]
    assert windows_of(running.end("a")) == [(day, 2), (2 * day, 1)]
