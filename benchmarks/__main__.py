"""``python -m benchmarks [--quick] [--rounds 5] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

from .machine import machine
from .report import figures, table
from .rows import CONTESTANTS, OURS, ROWS, Row
from .running import Run, run


def measured(row: Row, rounds: int, seconds: float) -> dict[str, list[Run]]:
    """Every contestant, in turns, so many times."""
    runs: dict[str, list[Run]] = {name: [] for name in (OURS, *row.beside)}
    for number in range(rounds):
        for name, done in runs.items():
            contestant = CONTESTANTS[name]
            options = row.work.options | contestant.options
            done.append(run(contestant.module, replace(row.work, seconds=seconds, options=options)))
            print(f"{row.name}, round {number + 1}: {name} {done[-1].rate():,.0f}/s", file=sys.stderr)
    return runs


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two short rounds")
    parser.add_argument("--rounds", type=int, default=5, help="how often each contestant runs")
    parser.add_argument("--row", action="append", default=[], help="only rows whose name begins so")
    parser.add_argument("--json", type=Path, help="where the figures go as well")
    given = parser.parse_args()
    rounds, seconds = (2, 0.4) if given.quick else (given.rounds, 1.0)
    rows = [row for row in ROWS if not given.row or row.name.startswith(tuple(given.row))]
    about = machine()
    command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
    print(f"`{command}`\n\n" + "".join(f"- {name}: {value}\n" for name, value in about.items()))
    found = {}
    for row in rows:
        runs = measured(row, rounds, seconds)
        found[row.name] = {name: figures(row, done) for name, done in runs.items()}
        print(table(row, found[row.name]), flush=True)
    if given.json is not None:
        given.json.write_text(
            json.dumps({"command": command, "machine": about, "rows": found}, indent=1) + "\n"
        )


if __name__ == "__main__":
    main()
