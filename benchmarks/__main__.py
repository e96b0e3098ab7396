"""``python -m benchmarks [--quick] [--rounds 5] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .machine import commit, machine
from .report import report
from .rows import ROWS, Row
from .running import Measures, run
from .work import Work

DIGITS = 5
"""Of a figure in the file."""
QUICK_SECONDS, QUICK_WARM_UP = 0.5, 0.1


def measured(row: Row, rounds: int, shorten: Callable[[Row], Work]) -> dict[str, dict[str, list[float]]]:
    """Every contestant, in turns, so many times: its measures by name, with a figure per round."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in row.contestants}
    work = shorten(row)
    for number in range(rounds):
        gone: dict[str, Measures] = {}
        for name, contestant in row.contestants.items():
            followed = {"followed": gone[contestant.follows]} if contestant.follows else {}
            of = replace(work, options={**work.options, **followed})
            gone[name] = run(contestant, of, row.sides)
            for measure, value in gone[name].items():
                found[name].setdefault(measure, []).append(float(f"{value:.{DIGITS}g}"))
            first = row.columns[0]
            print(f"{row.name}, round {number + 1}: {name}: {gone[name].get(first)} {first}", file=sys.stderr)
    return found


def _whole(row: Row) -> Work:
    return row.work


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
    data = {
        "command": shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(),
        "rows": {row.name: measured(row, rounds, _quick if given.quick else _whole) for row in rows},
    }
    print(report(data))
    if given.json is not None:
        given.json.write_text(json.dumps(data, separators=(",", ":")).replace("}},", "}},\n") + "\n")


if __name__ == "__main__":
    main()
