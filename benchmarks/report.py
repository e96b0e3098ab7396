"""Tables in Markdown from a run's figures: medians with their spread, ratios per round, targets.

`python -m benchmarks.report docs/benchmarks/channels.json` prints them. Pages that follow get them between their marks,
`<!-- figures -->` to `<!-- end of figures -->`, and so for each of `SECTIONS`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from . import flights, planning, starting
from .measures import TITLES, Rounds, per_round, spread
from .nexmark import figures as nexmark
from .row import Row
from .rows import ROWS
from .spark.rows import SPARK_ROWS
from .steps.rows import STEP_ROWS
from .storage.rows import COLLECTION_ROWS
from .targets import contestants_of
from .views.rows import VIEW_ROWS

_SIDES = ("receiver", "sender", "broker")

Choices = Mapping[str, Mapping[str, Any]]
"""Of contestants with several settings, each with the one it was measured in."""


def report(data: Mapping[str, Any]) -> str:
    """All rows of a run: the command, the machine, and a table per row."""
    rows, settings = data["rows"], data.get("settings", {})
    tables = [
        table(row, rows[row.name], settings.get(row.name, {}))
        for row in (*ROWS, *SPARK_ROWS, *STEP_ROWS, *COLLECTION_ROWS, *VIEW_ROWS)
        if row.name in rows
    ]
    return "\n".join([head(data), *tables])


def _of(part: str, table_of: Callable[[Any], str]) -> Callable[[Mapping[str, Any]], str]:
    return lambda data: f"{table_of(data[part])}\n\n{head(data)}"


SECTIONS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "figures": report,
    "flights": _of("flights", flights.table),
    "starting": _of("starting", starting.table),
    "planning": _of("planning", planning.table),
    "nexmark": _of("nexmark", nexmark.table),
}
"""What pages have of a run, by the name in their marks."""


def head(data: Mapping[str, Any]) -> str:
    """What a run stands on."""
    lines = [f"- {name}: {value}" for name, value in data["machine"].items()]
    return "\n".join([f"`{data['command']}`, at commit {data['commit']}", "", *lines, ""])


def table(row: Row, found: Mapping[str, Rounds], settings: Choices) -> str:
    """A row's contestants."""
    titles = ["", *(TITLES[column] for column in row.columns)]
    if len(found) > 1:
        titles.append(f"{row.ours} / it" if row.ours else f"compared with {row.base}")
    processor = any(_processor(rounds) for rounds in found.values())
    if processor:
        titles.append("CPU s per GB: receiver + sender")
    if settings:
        titles.append("setting")
    lines = [f"### {row.name[0].upper()}{row.name[1:]}", "", _line(titles), "|---" * len(titles) + "|"]
    for name, rounds in found.items():
        cells = [name, *(spread(rounds[column]) if column in rounds else "" for column in row.columns)]
        if len(found) > 1:
            cells.append(_beside(row, found, name))
        if processor:
            cells.append(_processor(rounds))
        if settings:
            cells.append(settings[name]["name"] if name in settings else "")
        lines.append(_line(cells))
    return "\n".join(lines) + "\n"


def verdicts(row: Row, found: Mapping[str, Rounds]) -> str:
    """Each target of a row, with the figures; a run may be older than a contestant of today's."""
    return "\n".join(
        f"- {each.verdict(found)}" for each in row.targets if contestants_of(each) <= found.keys()
    )


def printed(row: Row, found: Mapping[str, Rounds], settings: Choices) -> str:
    """A row as the command that measures it prints it: the table, and each target."""
    return f"{table(row, found, settings)}\n{verdicts(row, found)}".rstrip() + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _beside(row: Row, found: Mapping[str, Rounds], name: str) -> str:
    """Ours beside a peer; of what is ours alone, each beside the first."""
    main, base = row.columns[0], row.beside(name)
    if name == base:
        return ""
    pair = found[name][main], found[base][main]
    return spread(per_round(*(reversed(pair) if row.ours else pair)), " x")


def _processor(rounds: Rounds) -> str:
    figures = [rounds.get(f"{side}_cpu_s_per_GB") for side in _SIDES]
    return " + ".join(f"{median(values):.2f}" for values in figures if values is not None)


def renewed(page: str, name: str, figures: str) -> str:
    """The page with these figures between the two marks of that name."""
    before, begin, rest = page.partition(f"<!-- {name} -->\n")
    _, end, after = rest.partition(f"<!-- end of {name} -->\n")
    if not end:
        raise ValueError(f"the page has no marks {name!r}")
    return f"{before}{begin}\n{figures}\n{end}{after}"


def filled(page: str, data: Mapping[str, Any]) -> str:
    """The page with everything that it has of this run."""
    for name in re.findall(r"(?m)^<!-- end of (\w+) -->$", page):
        page = renewed(page, name, SECTIONS[name](data))
    return page


def main() -> None:
    """Print the tables, or put them into pages."""
    given, *pages = map(Path, sys.argv[1:])
    data = json.loads(given.read_text("utf-8"))
    if not pages:
        print(report(data))
    for page in pages:
        page.write_text(filled(page.read_text("utf-8"), data), "utf-8")


if __name__ == "__main__":
    main()
