"""All that one run measures, written after each row."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from .machine import commit
from .report import printed
from .rounds import choose, measured
from .row import Row

QUICK_SECONDS, QUICK_WARM_UP = 0.3, 0.1


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
    """``module`` is what was called, ``machine`` what the figures stand on, ``path`` where they go as well."""

    def __init__(self, module: str, machine: Mapping[str, str], path: Path | None) -> None:
        self._path = path
        self.data: dict[str, Any] = {
            "command": shlex.join(["python", "-m", module, *sys.argv[1:]]),
            "commit": commit(),
            "machine": machine,
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
        print(printed(row, found, settings), flush=True)
        self._write()

    def part(self, name: str, found: Any) -> None:
        """Keep what was measured, and is not a row."""
        self.data[name] = found
        self._write()

    def _write(self) -> None:
        if self._path is not None:
            text = json.dumps(self.data, separators=(",", ":")).replace("}},", "}},\n")
            self._path.write_text(text + "\n", "utf-8")
