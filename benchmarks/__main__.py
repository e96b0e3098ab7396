"""``python -m benchmarks [--quick] [--rounds 5] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from .machine import commit, machine
from .report import head, table
from .rounds import measured
from .rows import ROWS, Row
from .work import Work

QUICK_SECONDS, QUICK_WARM_UP = 0.5, 0.1


def _quick(row: Row) -> Work:
    work = row.work
    warm_up = min(work.warm_up, QUICK_WARM_UP)
    return replace(work, seconds=QUICK_SECONDS, warm_up=warm_up, options={**work.options, **row.quick})


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, of less")
    parser.add_argument("--rounds", type=int, help="how often each contestant runs; 5")
    parser.add_argument("--row", action="append", default=[], help="only rows whose name begins so")
    parser.add_argument("--json", type=Path, help="where the figures of all rounds go as well")
    given = parser.parse_args()
    rounds = given.rounds or (1 if given.quick else 5)
    rows = [row for row in ROWS if not given.row or row.name.startswith(tuple(given.row))]
    if not rows:
        parser.error(
            f"no row's name begins with {given.row}: there are {', '.join(row.name for row in ROWS)}"
        )
    found: dict[str, Any] = {}
    data = {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "rows": found,
    }
    print(head(data))
    for row in rows:
        found[row.name] = measured(row, rounds, _quick(row) if given.quick else row.work)
        print(table(row, found[row.name]), flush=True)
        if given.json is not None:
            given.json.write_text(json.dumps(data, separators=(",", ":")).replace("}},", "}},\n") + "\n")


if __name__ == "__main__":
    main()
