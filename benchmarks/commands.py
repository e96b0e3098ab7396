"""What the commands of all that is measured have in common: their options, and the loop over their rows."""

from __future__ import annotations

import argparse
import sqlite3
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from .machine import machine
from .recording import Run
from .report import head
from .row import Row


def parser_of(module: str, description: str | None) -> argparse.ArgumentParser:
    """The options of ``python -m MODULE``."""
    parser = argparse.ArgumentParser(prog=f"python -m {module}", description=description)
    parser.add_argument("--quick", action="store_true", help="one short round, of less")
    parser.add_argument(
        "--rounds", type=int, help="how often each contestant of a row runs; a row says itself"
    )
    parser.add_argument("--row", action="append", default=[], help="only what has a name that begins so")
    parser.add_argument("--json", type=Path, help="where the figures of all rounds go as well")
    return parser


@contextmanager
def recorded(module: str, facts: Mapping[str, str], given: argparse.Namespace) -> Iterator[Run]:
    """A run that is printed; on stderr, how long it took."""
    run = Run(module, facts, given.json)
    print(head(run.data))
    began = time.monotonic()
    yield run
    print(f"{(time.monotonic() - began) / 60:.1f} minutes", file=sys.stderr)


def measure(
    module: str,
    description: str | None,
    rows: Sequence[Row],
    *,
    packages: Sequence[str],
    cores: str,
    facts: Mapping[str, str] | None = None,
) -> None:
    """Measure the rows that are asked for, and print their tables.

    ``packages``, ``cores`` and ``facts`` say what the figures stand on.
    """
    parser = parser_of(module, description)
    given = parser.parse_args()
    wanted = [row for row in rows if row.name.startswith(tuple(given.row) or ("",))]
    if not wanted:
        names = ", ".join(row.name for row in rows)
        parser.error(f"no row's name begins with {given.row}: there are {names}")
    stands_on = machine(packages) | {"cores": cores, "SQLite": sqlite3.sqlite_version} | {**(facts or {})}
    with recorded(module, stands_on, given) as run:
        for row in wanted:
            run.row(row, quick=given.quick, rounds=given.rounds)
