"""``python -m benchmarks.spark [--quick] [--rounds 3] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout.

All contestants run in one Spark session, and take turns.
"""

from __future__ import annotations

import json
import shlex
import sys
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

from benchmarks.commands import parser_of
from benchmarks.machine import commit, machine
from benchmarks.report import head, printed
from benchmarks.rounds import DIGITS
from benchmarks.running import Measures
from benchmarks.work import Work

from .contestants import measured, triggers
from .rows import SPARK_ROWS, Prepared, SparkRow
from .session import spark_session

PACKAGES = ("uvloop", "pyarrow", "pyspark")
CORES = "not pinned: Spark and the other end of the channels share both cores"
ROUNDS = 3
QUICK = {"batches": 20, "triggers": 5, "warm_up": 3, "files": 30}


def run(spark: Any, row: SparkRow, work: Work, rounds: int) -> dict[str, dict[str, list[float]]]:
    """Every contestant in turns, after a first time that does not count."""
    assert row.functions is not None
    found: dict[str, dict[str, list[float]]] = {name: {} for name in row.functions}
    with ExitStack() as stack:
        prepared = {
            name: stack.enter_context(function(spark, work)) for name, function in row.functions.items()
        }
        for number in range(rounds + 1):
            for name, what in prepared.items():
                measures = measure(what, work, row)
                print(f"{row.name}, round {number}: {name}: {measures}", file=sys.stderr)
                for column, value in measures.items():
                    if number:
                        found[name].setdefault(column, []).append(float(f"{value:.{DIGITS}g}"))
    return found


def once(spark: Any, function: Prepared, work: Work, row: SparkRow) -> Measures:
    """A single contestant, a single time."""
    with function(spark, work) as what:
        return measure(what, work, row)


def measure(what: Any, work: Work, row: SparkRow) -> Measures:
    """A job, or so many triggers of a query."""
    if row.streaming:
        return triggers(what, work.options["triggers"], work.options["warm_up"])
    job, others = what
    return measured(job, work.options["rows"] * work.options["batches"], *others)


def main() -> None:
    """Measure, and print."""
    parser = parser_of("benchmarks.spark", __doc__)
    given = parser.parse_args()
    rows = [row for row in SPARK_ROWS if not given.row or row.name.startswith(tuple(given.row))]
    if not rows:
        parser.error(
            f"no row's name begins with {given.row}: there are {', '.join(row.name for row in SPARK_ROWS)}"
        )
    found: dict[str, Any] = {}
    data = {
        "command": shlex.join(["python", "-m", "benchmarks.spark", *sys.argv[1:]]),
        "commit": commit(),
        "machine": machine(PACKAGES) | {"cores": CORES},
        "rows": found,
    }
    print(head(data))
    with spark_session() as spark:
        for row in rows:
            work = row.work
            if given.quick:
                options = {name: min(value, QUICK.get(name, value)) for name, value in work.options.items()}
                work = replace(work, options=options)
            found[row.name] = run(spark, row, work, 1 if given.quick else given.rounds or ROUNDS)
            print(printed(row, found[row.name], {}), flush=True)
            if given.json is not None:
                given.json.write_text(
                    json.dumps(data, separators=(",", ":")).replace("}},", "}},\n") + "\n", "utf-8"
                )


if __name__ == "__main__":
    main()
