"""The events as each contestant reads them: whole files, CSV, and a file for each mini-batch."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import duckdb

from examples.nexmark import files
from examples.nexmark.events import PER_SECOND

BATCHES = 8
COLUMNS = {
    "person": "id, name, city, state, date_time",
    "auction": "id, seller, category, date_time, expires",
    "bid": "auction, bidder, price, date_time",
}
"""All that the queries read."""
IN_NUMBERS = {
    "person": "id AS person, name, city, state, epoch_us(date_time) AS at",
    "auction": "id AS auction, seller, category, epoch_us(date_time) AS at, epoch_us(expires) AS expires",
    "bid": "auction, bidder, price, epoch_us(date_time) AS at",
}


APPENDING = ("q1", "q3", "q5", "q8")
"""Queries that never take a row back."""


def prepare(folder: Path, events: int, streams: Sequence[str]) -> int:
    """Write streams of so many events: whole, as CSV, in mini-batches, and with an event long after these.

    How many events the streams have.
    """
    rows = files.write(folder, events, streams=streams)
    topology = folder / files.ONE_NODE
    text = topology.read_text("utf-8")
    for name in APPENDING:
        text = text.replace(f"path: {name}.parquet}}", f"path: {name}.parquet, mode: append}}")
    topology.write_text(text, "utf-8")
    in_batches, and_after = folder / "batches", folder / "and-after"
    seconds = events / PER_SECOND / BATCHES
    with duckdb.connect() as db:
        db.sql("SET TimeZone = 'UTC'")
        for name, columns in ((each, COLUMNS[each]) for each in streams):
            whole = folder / f"{name}.parquet"
            db.sql(f"COPY (SELECT {IN_NUMBERS[name]} FROM '{whole}') TO '{folder / name}.csv' (HEADER)")
            db.sql(f"CREATE TABLE {name} AS SELECT {columns} FROM '{whole}'")
            for place in (in_batches / name, and_after / name):
                place.mkdir(parents=True)
            for number in range(BATCHES):
                path = in_batches / name / f"{number:03}.parquet"
                since = f"epoch(date_time - TIMESTAMPTZ '2015-07-15 00:00:00+00') / {seconds}"
                last = number if number < BATCHES - 1 else 1e9
                part = f"FROM {name} WHERE {since} >= {number} AND {since} < {last + 1}"
                db.sql(f"COPY ({part}) TO '{path}' (FORMAT parquet)")
                (and_after / name / path.name).symlink_to(path)
            late = (
                f"SELECT * REPLACE (-1 AS {columns.split(',')[0]}, date_time + INTERVAL 1 DAY AS date_time)"
            )
            newest = f"(FROM {name} ORDER BY date_time DESC LIMIT 1)"
            db.sql(
                f"COPY ({late} FROM {newest}) TO '{and_after / name}/{BATCHES:03}.parquet' (FORMAT parquet)"
            )
    return sum(rows.values())
