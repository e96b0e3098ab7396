"""``python -m benchmarks [--quick] [--rounds N] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from . import flights, planning, starting
from .machine import commit, machine
from .report import SECTIONS, head, table
from .rounds import choose, measured
from .row import Row
from .rows import ROWS

QUICK_SECONDS, QUICK_WARM_UP = 0.3, 0.1

PARTS: Mapping[str, Callable[[bool], Any]] = {
    "flights": lambda quick: flights.run(5, 1) if quick else flights.run(flights.TIMES, flights.ROUNDS),
    "starting": lambda quick: starting.run(1 if quick else starting.ROUNDS),
    "planning": lambda _: planning.run(planning.SIZES),
}
"""What is measured beside the rows, in tables of its own."""


def _quick(row: Row) -> Row:
    """What a first look is at: less of it, once, and everyone in the first of its settings."""
    work = replace(
        row.work,
        seconds=QUICK_SECONDS,
        warm_up=min(row.work.warm_up, QUICK_WARM_UP),
        options={**row.work.options, **row.quick},
    )
    contestants = {name: each for name, each in row.contestants.items() if name not in row.slow}
    return replace(row, work=work, contestants=contestants, rounds=1)


class Run:
    """All that is measured, and written after each row."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.data: dict[str, Any] = {
            "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
            "commit": commit(),
            "machine": machine(),
            "settings": {},
            "rows": {},
        }

    def row(self, row: Row, *, quick: bool, rounds: int | None) -> None:
        """Measure all of its contestants."""
        chosen = {} if quick else choose(row)
        row = _quick(row) if quick else row
        found = measured(row, rounds or row.rounds, chosen)
        settings = {name: asdict(each) for name, each in chosen.items()}
        self.data["rows"][row.name], self.data["settings"][row.name] = found, settings
        print(table(row, found, settings), flush=True)
        self._write()

    def part(self, name: str, *, quick: bool) -> None:
        """Measure what is no row."""
        self.data[name] = PARTS[name](quick)
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            text = json.dumps(self.data, separators=(",", ":")).replace("}},", "}},\n")
            self._path.write_text(text + "\n")


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
    run = Run(given.json)
    print(head(run.data))
    began = time.monotonic()
    for row in rows:
        run.row(row, quick=given.quick, rounds=given.rounds)
    for name in parts:
        run.part(name, quick=given.quick)
        print(SECTIONS[name](run.data), flush=True)
    print(f"{(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)


if __name__ == "__main__":
    main()
