"""Nexmark's streams are as its definition says, and its queries give what DuckDB gives."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from benchmarks.nexmark.events import PORTION, events
from benchmarks.nexmark.files import FORMATS, QUERIES, SQL, TOPOLOGY, write
from nebuli.dataflow import arrow_schema
from placement import check_stepped, load_query
from tests.support.commands import nebuli
from tests.support.ports import free_addresses
from topology import load_topology

COUNT = 50_000
"""Five seconds of events: all windows of 10 seconds are cut off at one end."""


def streams(count: int = COUNT, seed: int = 0) -> dict[str, pa.Table]:
    portions = list(events(count, seed))
    return {name: pa.Table.from_batches([portion[name] for portion in portions]) for name in portions[0]}


def test_the_same_seed_gives_the_same_rows_and_another_one_others() -> None:
    assert streams(1_000) == streams(1_000)
    assert streams(1_000)["bid"] != streams(1_000, seed=1)["bid"]


def test_of_fifty_events_one_is_a_person_and_three_are_auctions() -> None:
    found = streams()
    assert {name: rows.num_rows for name, rows in found.items()} == {
        "person": COUNT // 50,
        "auction": COUNT // 50 * 3,
        "bid": COUNT // 50 * 46,
    }
    for name in ("person", "auction"):
        assert found[name]["id"].to_pylist() == list(range(1000, 1000 + found[name].num_rows))
    every = pa.concat_arrays(found[name]["date_time"].combine_chunks() for name in found)
    micros = sorted(every.cast(pa.int64()).to_pylist())
    assert micros == list(range(micros[0], micros[0] + 100 * COUNT, 100))


def test_nothing_refers_to_what_is_not_there_yet() -> None:
    found = streams()
    joins = {
        "auction": "auction JOIN person ON seller = person.id AND person.date_time < auction.date_time",
        "bid": "bid JOIN auction ON auction = id AND auction.date_time < bid.date_time JOIN person ON "
        "bidder = person.id AND person.date_time < bid.date_time",
    }
    with duckdb.connect() as db:
        for name, rows in found.items():
            db.register(name, rows)
        for name, join in joins.items():
            assert db.sql(f"SELECT count(*) FROM {join}").fetchall() == [(found[name].num_rows,)]


def test_half_of_the_bids_are_for_one_auction_in_a_hundred() -> None:
    on = Counter(streams()["bid"]["auction"].to_pylist())
    hot = sum(count for auction, count in on.items() if auction % 100 == 0)
    assert 0.49 < hot / on.total() < 0.52


def test_streams_longer_than_a_portion_go_on_where_it_ended() -> None:
    first, second = (portion["auction"]["id"] for portion in events(PORTION + 100))
    assert second[0].as_py() == first[-1].as_py() + 1


@pytest.mark.processes
@pytest.mark.parametrize("format_", FORMATS)
def test_both_queries_give_what_duckdb_gives(tmp_path: Path, format_: str) -> None:
    """The hot items of each window, those of windows that are cut off too, and local sellers of a category."""
    rows = write(tmp_path, COUNT, format=format_)
    text = (tmp_path / TOPOLOGY).read_text()
    for address, free in zip(("127.0.0.1:27421", "127.0.0.1:27431"), free_addresses(2), strict=True):
        text = text.replace(address, free)
    (tmp_path / TOPOLOGY).write_text(text)
    with duckdb.connect() as db:
        db.sql("SET TimeZone = 'UTC'")
        for name, table in streams().items():
            assert table.num_rows == rows[name]
            db.register(name, table)
        for name, path in QUERIES.items():
            ended = nebuli("run", tmp_path / TOPOLOGY, path, directory=tmp_path)
            assert ended.exit_code == 0, ended.stderr
            ours, theirs = f"SELECT * FROM '{tmp_path}/{name}.parquet'", SQL[name]
            columns = [column[0] for column in db.sql(theirs).description]
            given = Counter(db.sql(f"SELECT {', '.join(columns)} FROM ({ours})").fetchall())
            assert given == Counter(db.sql(theirs).fetchall())
            assert given.total() > 5


@pytest.mark.parametrize("query", QUERIES)
def test_the_same_queries_may_run_in_steps(tmp_path: Path, query: str) -> None:
    write(tmp_path, 100)
    topology = load_topology(tmp_path / TOPOLOGY)
    plan = check_stepped(load_query(QUERIES[query]), topology)
    sources = [
        each["logical"] for each in json.loads(QUERIES[query].read_text())["operators"] if "logical" in each
    ]
    assert sorted(each.logical for each in plan.inputs) == sorted(sources)
    assert [each.sink for each in plan.outputs] == [query]


def test_the_topology_has_the_streams_columns(tmp_path: Path) -> None:
    write(tmp_path, 100)
    logical = load_topology(tmp_path / TOPOLOGY).logical
    for source in logical:
        assert arrow_schema(source.columns) == streams(100)[source.name].schema
