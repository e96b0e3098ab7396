"""Tables in Markdown from a run's figures: medians with their spread, ratios per round, targets.

`python -m benchmarks.report docs/benchmarks.json` prints them; with a page behind it, they replace the page's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from .measures import TITLES, Rounds, per_round, spread
from .rows import OURS, ROWS, Row
from .spark.rows import SPARK_ROWS

BEGIN, END = "<!-- figures -->\n", "<!-- end of figures -->\n"
_SIDES = ("receiver", "sender", "broker")


def report(data: Mapping[str, Any]) -> str:
    """All of a run: the command, the machine, and a table per row."""
    tables = [table(row, data["rows"][row.name]) for row in (*ROWS, *SPARK_ROWS) if row.name in data["rows"]]
    return "\n".join([head(data), *tables])


def head(data: Mapping[str, Any]) -> str:
    """What comes before the tables."""
    lines = [f"- {name}: {value}" for name, value in data["machine"].items()]
    return "\n".join([f"`{data['command']}`, at commit {data['commit']}", "", *lines, ""])


def table(row: Row, found: Mapping[str, Rounds]) -> str:
    """A row's contestants, then what was to be reached."""
    titles = ["", *(TITLES[column] for column in row.columns)]
    if len(found) > 1:
        titles.append("netchannel beside it" if row.base == OURS else f"beside {row.base}")
    if any(_processor(rounds) for rounds in found.values()):
        titles.append("processor s per GB: receiver + sender")
    lines = [f"### {row.name[0].upper()}{row.name[1:]}", "", _line(titles), "|---" * len(titles) + "|"]
    for name, rounds in found.items():
        figures = [spread(rounds[column]) if column in rounds else "" for column in row.columns]
        lines.append(_line([name, *figures, _beside(row, found, name), _processor(rounds)][: len(titles)]))
    return "\n".join([*lines, "", *(f"- {target.verdict(found)}" for target in row.targets)]).strip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _beside(row: Row, found: Mapping[str, Rounds], name: str) -> str:
    """Ours beside a peer; of what is ours alone, each beside the first."""
    main = row.columns[0]
    if name == row.base:
        return ""
    pair = found[name][main], found[row.base][main]
    return spread(per_round(*(reversed(pair) if row.base == OURS else pair)), " x")


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
