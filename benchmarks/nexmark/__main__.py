"""``python -m benchmarks.nexmark FOLDER [--events 1000000] [--format Parquet] [--seed 0]``: write the streams.

Then ``nebuli run FOLDER/topology.yaml benchmarks/nexmark/q5.json`` answers from them.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from .files import FORMATS, write

EVENTS = 1_000_000


def main() -> None:
    """Write, and say how much."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.nexmark", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--events", type=int, default=EVENTS, help="persons, auctions and bids together")
    parser.add_argument("--format", choices=FORMATS, default="Parquet")
    parser.add_argument("--seed", type=int, default=0, help="the same seed, the same rows")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    rows = write(given.folder, given.events, format=given.format, seed=given.seed)
    print(", ".join(f"{count:,} rows of {name}" for name, count in rows.items()))


if __name__ == "__main__":
    main()
