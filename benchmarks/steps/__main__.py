"""``python -m benchmarks.steps [--quick] [--rounds 3] [--row NAME ...] [--json FILE]``: tables in Markdown."""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from pathlib import Path

from benchmarks.machine import machine
from benchmarks.recording import Run
from benchmarks.report import head

from .rows import STEP_ROWS

PACKAGES = ("uvloop", "pyarrow", "numpy", "xxhash")
CORES = "two members: each on one, or on any, which the last column says; one member: on any"


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.steps", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, of less")
    parser.add_argument("--rounds", type=int, help="how often each case of a row runs; 3")
    parser.add_argument("--row", action="append", default=[], help="only rows whose name begins so")
    parser.add_argument("--json", type=Path, help="where the figures of all rounds go as well")
    given = parser.parse_args()
    rows = [row for row in STEP_ROWS if row.name.startswith(tuple(given.row) or ("",))]
    if not rows:
        names = ", ".join(row.name for row in STEP_ROWS)
        parser.error(f"no row's name begins with {given.row}: there are {names}")
    facts = machine(PACKAGES) | {"cores": CORES, "SQLite": sqlite3.sqlite_version}
    run = Run("benchmarks.steps", facts, given.json)
    print(head(run.data))
    began = time.monotonic()
    for row in rows:
        run.row(row, quick=given.quick, rounds=given.rounds)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
