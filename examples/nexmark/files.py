"""``python -m examples.nexmark.files FOLDER [--events 1000000] [--seed 0]``: the streams as files, and topologies.

Then ``nebuli run FOLDER/topology.yaml examples/nexmark/queries/q5.json`` answers from them.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow.parquet as pq

from .events import PER_SECOND, STREAMS, events

HERE = Path(__file__).parent
QUERIES = tuple(f"q{number}" for number in range(9))
ONE_NODE, NODES, SPARK = TOPOLOGIES = ("topology.yaml", "topology-nodes.yaml", "topology-spark.yaml")
EVENTS = 1_000_000


def query(name: str) -> Path:
    """The file of a query, which runs free and in steps."""
    return HERE / "queries" / f"{name}.json"


def query_in_steps(name: str) -> Path:
    """The same for a run in steps, where what several operators read is read once."""
    once = HERE / "in-steps" / f"{name}.json"
    return once if once.is_file() else query(name)


def runnable(name: str) -> Path:
    """The query as a statement that ``nebuli run`` takes."""
    return HERE / "statements" / f"{name}.sql"


def statement(name: str) -> str:
    """The query in SQL, in DuckDB's dialect, over ``person``, ``auction`` and ``bid``."""
    return query(name).with_suffix(".sql").read_text("utf-8")


def write(
    folder: Path,
    count: int,
    *,
    seed: int = 0,
    per_second: int = PER_SECOND,
    streams: Sequence[str] = STREAMS,
) -> dict[str, int]:
    """Write the ``streams`` of the first ``count`` events, and topologies; how many rows there are of each."""
    rows: dict[str, int] = {}
    with ExitStack() as stack:
        writers: dict[str, pq.ParquetWriter] = {}
        for portion in events(count, seed, streams, per_second):
            for name, batch in portion.items():
                if name not in writers:
                    writer = pq.ParquetWriter(folder / f"{name}.parquet", batch.schema)
                    writers[name] = stack.enter_context(writer)
                writers[name].write_batch(batch)
                rows[name] = rows.get(name, 0) + batch.num_rows
    for topology in TOPOLOGIES:
        (folder / topology).write_text((HERE / topology).read_text("utf-8"), "utf-8")
    return rows


def main() -> None:
    """Write, and print how much."""
    parser = argparse.ArgumentParser(prog="python -m examples.nexmark.files", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=EVENTS, help="persons, auctions and bids together")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same rows")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = write(given.folder, given.events, seed=given.seed)
    print(", ".join(f"{count:,} rows of {name}" for name, count in rows.items()))


if __name__ == "__main__":
    main()
