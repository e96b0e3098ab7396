"""``python -m benchmarks [--quick] [--rounds N] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from . import flights, planning, starting
from .machine import machine
from .recording import Run
from .report import SECTIONS, head
from .rows import ROWS

PARTS: Mapping[str, Callable[[bool], Any]] = {
    "flights": lambda quick: flights.run(5, 1) if quick else flights.run(flights.TIMES, flights.ROUNDS),
    "starting": lambda quick: starting.run(1 if quick else starting.ROUNDS),
    "planning": lambda _: planning.run(planning.SIZES),
}
"""What is measured beside the rows, in tables of its own."""


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round, of less")
    parser.add_argument("--rounds", type=int, help="how often each contestant of a row runs; 2 to 4")
    parser.add_argument("--row", action="append", default=[], help="only what has a name that begins so")
    parser.add_argument("--json", type=Path, help="where the figures of all rounds go as well")
    given = parser.parse_args()
    wanted = tuple(given.row) or ("",)
    rows = [row for row in ROWS if row.name.startswith(wanted)]
    parts = [name for name in PARTS if name.startswith(wanted)]
    if not rows and not parts:
        names = ", ".join([*(row.name for row in ROWS), *PARTS])
        parser.error(f"nothing has a name that begins with {given.row}: there are {names}")
    run = Run("benchmarks", machine(), given.json)
    print(head(run.data))
    began = time.monotonic()
    for row in rows:
        run.row(row, quick=given.quick, rounds=given.rounds)
    for name in parts:
        run.part(name, PARTS[name](given.quick))
        print(SECTIONS[name](run.data), flush=True)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
