"""Tables in Markdown from a run's figures: medians with their spread, ratios per round, targets.

`python -m benchmarks.report docs/benchmarks.json` prints them; with a page behind it, they replace the page's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

from .rows import COLUMNS, ROWS, Row
from .targets import Rounds, per_round, spread

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
_SIDES = ("receiver", "sender", "broker")


def report(data: Mapping[str, Any]) -> str:
    """All of a run: the command, the machine, and a table per row."""
    lines = [f"`{data['command']}`, at commit {data['commit']}", ""]
    lines += [f"- {name}: {value}" for name, value in data["machine"].items()]
    tables = [table(row, data["rows"][row.name]) for row in ROWS if row.name in data["rows"]]
    return "\n".join([*lines, "", *tables])


def table(row: Row, found: Mapping[str, Rounds]) -> str:
    """A row's contestants, then what was to be reached."""
    main = row.columns[0]
    titles = [COLUMNS[column] for column in row.columns]
    lines = [
        f"### {row.name[0].upper()}{row.name[1:]}",
        "",
        f"| | {' | '.join(titles)} | {_beside(row)} | processor s per GB: receiver + sender |",
        "|---" * (len(titles) + 3) + "|",
    ]
    for name, rounds in found.items():
        cells = [spread(rounds[column]) if column in rounds else "" for column in row.columns]
        ratio = ""
        if name != row.base and main in rounds:
            ratio = spread(per_round(rounds[main], found[row.base][main]), " x")
        lines.append(f"| {name} | {' | '.join(cells)} | {ratio} | {_processor(rounds)} |")
    lines += ["", *[f"- {target.verdict(found)}" for target in row.targets]]
    return "\n".join([*lines, ""] if row.targets else lines)


def _beside(row: Row) -> str:
    return f"{COLUMNS[row.columns[0]]} beside {row.base}"


def _processor(rounds: Rounds) -> str:
    figures = [rounds.get(f"{side}_cpu_s_per_GB") for side in _SIDES]
    return " + ".join(f"{median(values):.2f}" for values in figures if values is not None)


def renewed(page: str, figures: str) -> str:
    """The page with these figures between its two marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def main() -> None:
    """Print the tables, or put them into a page."""
    data, *page = map(Path, sys.argv[1:])
    figures = report(json.loads(data.read_text()))
    if not page:
        print(figures)
        return
    page[0].write_text(renewed(page[0].read_text(), figures))


if __name__ == "__main__":
    main()
