"""Rounds of a row: its contestants take turns, so that what disturbs one disturbs all.

Whoever can be run in several settings tries all of them first, and does the rounds in the one that came out best; these
tries are not a round, so that no contestant gains from having had more of them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from .row import Row
from .running import Contestant, Measures, Setting, run

DIGITS = 5
"""Of a figure that is kept."""
TRY_SECONDS, TRY_WARM_UP = 0.35, 0.1


@dataclass(frozen=True)
class Chosen:
    """A contestant's settings: the one that it is measured in, and the best that each came to."""

    name: str
    tried: Mapping[str, float]


def measured(row: Row, rounds: int, chosen: Mapping[str, Chosen]) -> dict[str, dict[str, list[float]]]:
    """Every contestant does the row's work, in turns: its measures by name, with a figure per round."""
    found: dict[str, dict[str, list[float]]] = {name: {} for name in row.contestants}
    for number in range(rounds):
        gone: dict[str, Measures] = {}
        for name, contestant in row.contestants.items():
            followed = {"followed": gone[contestant.follows]} if contestant.follows else {}
            work = replace(row.work, options={**row.work.options, **followed})
            gone[name] = run(contestant, work, row.sides, _setting(contestant, chosen.get(name)))
            for measure, value in gone[name].items():
                found[name].setdefault(measure, []).append(_short(value))
            first = row.columns[0]
            print(f"{row.name}, round {number + 1}: {name}: {gone[name].get(first)} {first}", file=sys.stderr)
    return found


def choose(row: Row) -> dict[str, Chosen]:
    """The best setting of everyone who has several, by the first of the row's columns, in turns as well."""
    several = {name: each for name, each in row.contestants.items() if len(each.settings) > 1}
    work = row.work
    brief = replace(work, seconds=min(work.seconds, TRY_SECONDS), warm_up=min(work.warm_up, TRY_WARM_UP))
    tried: dict[str, dict[str, list[float]]] = {name: {} for name in several}
    measure = row.columns[0]
    for _ in range(row.tries):
        for name, contestant in several.items():
            for setting in contestant.settings:
                figure = run(contestant, brief, row.sides, setting)[measure]
                tried[name].setdefault(setting.name, []).append(_short(figure))
    best: Callable[..., Any] = max if measure.endswith("_per_s") else min
    return {
        name: _chosen({each: best(figures) for each, figures in found.items()}, best)
        for name, found in tried.items()
    }


def _chosen(tried: Mapping[str, float], best: Callable[..., str]) -> Chosen:
    return Chosen(best(tried, key=tried.__getitem__), tried)


def _setting(contestant: Contestant, chosen: Chosen | None) -> Setting:
    if chosen is None:
        return contestant.settings[0]
    (setting,) = (each for each in contestant.settings if each.name == chosen.name)
    return setting


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")
