"""``python -m benchmarks [--quick] [--rounds N] [--row NAME ...] [--json FILE]``: tables in Markdown on stdout.

With ``nexmark``, ``spark``, ``steps``, ``storage`` or ``views`` in front, what is measured apart: ``benchmarks.steps``.
"""

from __future__ import annotations

import runpy
import sys
from collections.abc import Callable, Mapping
from typing import Any

from . import flights, planning, starting
from .commands import parser_of, recorded
from .machine import machine
from .report import SECTIONS
from .rows import ROWS

PARTS: Mapping[str, Callable[[bool], Any]] = {
    "flights": lambda quick: flights.run(5, 1) if quick else flights.run(flights.TIMES, flights.ROUNDS),
    "starting": lambda quick: starting.run(1 if quick else starting.ROUNDS),
    "planning": lambda _: planning.run(planning.SIZES),
}
"""What is measured beside the rows, in tables of its own."""


APART = ("nexmark", "spark", "steps", "storage", "views")
"""Packages with a command of their own."""


def main() -> None:
    """Measure, and print."""
    if sys.argv[1:2] and sys.argv[1] in APART:
        runpy.run_module(f"{__package__}.{sys.argv.pop(1)}", run_name="__main__", alter_sys=True)
        return
    parser = parser_of("benchmarks", __doc__)
    given = parser.parse_args()
    wanted = tuple(given.row) or ("",)
    rows = [row for row in ROWS if row.name.startswith(wanted)]
    parts = [name for name in PARTS if name.startswith(wanted)]
    if not rows and not parts:
        names = ", ".join([*(row.name for row in ROWS), *PARTS])
        parser.error(f"nothing has a name that begins with {given.row}: there are {names}")
    with recorded("benchmarks", machine(), given) as run:
        for row in rows:
            run.row(row, quick=given.quick, rounds=given.rounds)
        for name in parts:
            run.part(name, PARTS[name](given.quick))
            print(SECTIONS[name](run.data), flush=True)


if __name__ == "__main__":
    main()
