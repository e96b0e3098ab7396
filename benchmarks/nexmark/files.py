"""Nexmark's streams as files, with a topology that has them, and what its queries are in SQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq

from .events import STREAMS, events

HERE = Path(__file__).parent
QUERIES = {name: HERE / f"{name}.json" for name in ("q3", "q5")}
TOPOLOGY = "topology.yaml"
FORMATS: dict[str, Callable[[Path, pa.Schema], Any]] = {
    "CSV": pa.csv.CSVWriter,
    "Parquet": pq.ParquetWriter,
}
SQL = {
    "q3": """
        SELECT person.name, person.city, person.state, auction.id AS auction
        FROM auction JOIN person ON auction.seller = person.id
        WHERE auction.category = 10 AND person.state IN ('OR', 'ID', 'CA')
    """,
    "q5": """
        WITH bids AS (
            SELECT auction, window_start, window_start + INTERVAL 10 SECONDS AS window_end, count(*) AS num
            FROM (
                SELECT auction, time_bucket(INTERVAL 2 SECONDS, date_time) - to_seconds(2 * back) AS window_start
                FROM bid, range(5) AS earlier(back)
            )
            GROUP BY auction, window_start
        )
        SELECT window_start, window_end, num, auction FROM bids
        WHERE num >= (SELECT max(num) FROM bids AS others WHERE others.window_start = bids.window_start)
    """,
}
"""By Nexmark's definition, in DuckDB's dialect, over `person`, `auction` and `bid`."""


def write(
    folder: Path,
    count: int,
    *,
    format: str = "Parquet",  # noqa: A002 - as topologies say
    seed: int = 0,
    streams: Sequence[str] = STREAMS,
) -> dict[str, int]:
    """Write the ``streams`` of the first ``count`` events and the topology; how many rows there are of each."""
    rows: dict[str, int] = {}
    extension = format.lower()
    with ExitStack() as stack:
        writers: dict[str, Any] = {}
        for portion in events(count, seed, streams):
            for name, batch in portion.items():
                if name not in writers:
                    path = folder / f"{name}.{extension}"
                    writers[name] = stack.enter_context(FORMATS[format](path, batch.schema))
                writers[name].write_batch(batch)
                rows[name] = rows.get(name, 0) + batch.num_rows
    text = (HERE / TOPOLOGY).read_text().replace("FORMAT", format).replace("EXTENSION", extension)
    (folder / TOPOLOGY).write_text(text)
    return rows
