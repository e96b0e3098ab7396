"""Nexmark's streams are as its definition says."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest

from examples.nexmark.events import PORTION, events
from examples.nexmark.files import TOPOLOGIES, write
from nebuli.dataflow import arrow_schema
from topology import load_topology

COUNT = 50_000


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


def test_a_slower_auction_has_the_same_events_further_apart() -> None:
    (fast,), (slow,) = events(1_000), events(1_000, per_second=1_000)
    for name, rows in fast.items():
        assert slow[name].drop_columns(["date_time"]).schema == rows.drop_columns(["date_time"]).schema
        micros = [each["date_time"].cast(pa.int64()).to_numpy() for each in (rows, slow[name])]
        assert (micros[1] - micros[1][0] == 10 * (micros[0] - micros[0][0])).all()
    assert slow["bid"].drop_columns(["date_time"]) == fast["bid"].drop_columns(["date_time"])


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_topologies_have_the_streams_columns(tmp_path: Path, name: str) -> None:
    write(tmp_path, 100)
    for source in load_topology(tmp_path / name).logical:
        assert arrow_schema(source.columns) == streams(100)[source.name].schema
