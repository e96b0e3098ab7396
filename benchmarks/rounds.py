"""Rounds of a row: its contestants take turns, so that what disturbs one disturbs all."""

from __future__ import annotations

import sys
from dataclasses import replace

from .rows import Row
from .running import Measures, run
from .work import Work

DIGITS = 5
"""Of a figure that is kept."""


def measured(row: Row, rounds: int, work: Work) -> dict[str, dict[str, list[float]]]:
    """Every contestant does ``work``, in turns: its measures by name, with a figure per round."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in row.contestants}
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
