"""Tables in Markdown of what each contestant took."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import Any

TITLES = {
    "q1": "q1, currency conversion: bids",
    "q3": "q3, local item suggestion: persons and auctions",
    "q4": "q4, average price for a category: auctions and bids",
    "q5": "q5, hot items: bids",
    "q8": "q8, new users: persons and auctions",
}
COLUMNS = (
    "",
    "events",
    "seconds",
    "events per second",
    "CPU seconds",
    "events per core-second",
    "nebuli / it",
)
OURS = "nebuli"


def table(figures: Mapping[str, Mapping[str, Any]]) -> str:
    """A table for each query: medians, and how many times the events per core-second ours are."""
    return "\n\n".join(_of_query(query, figures[query]) for query in TITLES if query in figures)


def _of_query(query: str, found: Mapping[str, Any]) -> str:
    lines = [f"### {TITLES[query]}", "", _line(COLUMNS), "|---" * len(COLUMNS) + "|"]
    ours = per_core_s(found[OURS]) if OURS in found else None
    for name, each in found.items():
        if "refused" in each:
            lines.append(_line((name, "does not answer it", *[""] * (len(COLUMNS) - 2))))
            continue
        seconds, cpu = (median(round_[key] for round_ in each["rounds"]) for key in ("seconds", "cpu_s"))
        beside = "" if ours is None or name == OURS else f"{ours / per_core_s(each):.2f} x"
        speeds = f"{each['events'] / seconds:,.0f}", f"{cpu:.2f}", f"{per_core_s(each):,.0f}"
        lines.append(_line((name, f"{each['events']:,}", f"{seconds:.2f}", *speeds, beside)))
    said = [f"{name} reports: {each['refused']}" for name, each in found.items() if "refused" in each]
    return "\n".join([*lines, *(f"\n{each}" for each in said)])


def per_core_s(each: Mapping[str, Any]) -> float:
    """Events per second of the processor's time, in the median of the rounds."""
    taken: float = median(round_["cpu_s"] for round_ in each["rounds"])
    return float(each["events"]) / taken


def _line(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"
