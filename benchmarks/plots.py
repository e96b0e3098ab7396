"""Plots of a run's figures, as SVG that follows the reader's light or dark scheme.

`python -m benchmarks.plots measured/channels.json ...` draws each plot whose figures a file has, and writes it next to
that file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from .measures import TITLES, number
from .nexmark import figures as nexmark
from .peers import ALLOCATED, OURS, PEERS

Data = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """Bars on a scale of their own: for each name the value of every round."""

    title: str
    unit: str
    bars: Mapping[str, Sequence[float]]
    less_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """Panels below a title."""

    title: str
    panels: Callable[[Data], Iterator[Panel]]


OTHERS = (
    *(name for name in PEERS if name not in (OURS, ALLOCATED)),
    *("plain file", "4 KiB each", "made in the task", "writer that drops"),
    *(
        "DuckDB",
        "Polars",
        "pathway",
        "bytewax",
        "Spark",
        "SQLite",
        "Delta Lake",
        "Parquet",
        "pyarrow",
        "Redis",
    ),
)
"""Beginnings of the names of all contestants that are neither netchannel nor nebuli."""


def _rows(column: str, *names: str, less_is_better: bool = False) -> Callable[[Data], Iterator[Panel]]:
    """A panel for each row that a run has, or that has a name that begins so."""

    def panels(data: Data) -> Iterator[Panel]:
        rows = data.get("rows", {})
        for row in (each for name in names for each in rows if each == name or each.startswith(f"{name}:")):
            bars = {who: figures[column] for who, figures in rows[row].items() if column in figures}
            yield Panel(row, TITLES[column], bars, less_is_better)

    return panels


def _all(*parts: Callable[[Data], Iterator[Panel]]) -> Callable[[Data], Iterator[Panel]]:
    return lambda data: (panel for part in parts for panel in part(data))


def _flights(data: Data) -> Iterator[Panel]:
    if "flights" in data:
        found = data["flights"]
        speeds = {
            name: [found["rows"][name] / each["seconds"] for each in rounds]
            for name, rounds in found["rounds"].items()
        }
        cpu = {
            name: [each["cpu_s"] * 1e6 / found["rows"][name] for each in rounds]
            for name, rounds in found["rounds"].items()
        }
        yield Panel("the demo's query, many times its rows", "rows/s", speeds)
        yield Panel("the same", "CPU s per million rows", cpu, less_is_better=True)


def _planning(data: Data) -> Iterator[Panel]:
    if "planning" in data:
        bars = {
            f"{each['operators']:,} operators, {each['nodes']:,} nodes": [each["place_s"] * 1e3]
            for each in data["planning"]
        }
        yield Panel("placing a query", "ms", bars, less_is_better=True)


def _nexmark(data: Data) -> Iterator[Panel]:
    for query, found in data.get("nexmark", {}).items():
        bars = {name: [nexmark.per_core_s(each)] for name, each in found.items() if "rounds" in each}
        yield Panel(nexmark.TITLES[query], "events per core-second", bars)


_APPENDS = [
    f"appends of {rows} by {writers}"
    for writers in ("one process", "four processes at once")
    for rows in ("1 row", "1 000 rows", "100 000 rows")
]
_SPARK = [
    f"Spark {does} {kind}, {rows} rows a batch"
    for does in ("reads", "writes")
    for kind in ("eight longs", "a mix with text")
    for rows in ("1 Ki", "64 Ki")
]

PLOTS: Mapping[str, Plot] = {
    "messages": Plot("Messages through one channel", _rows("messages_per_s", "64 B", "1 KiB", "64 KiB")),
    "batches": Plot(
        "Arrow batches through one channel",
        _rows(
            "MB_per_s",
            *("1 MiB Arrow batches", "8 MiB Arrow batches"),
            *("1 MiB Arrow batches, as each chooses", "8 MiB Arrow batches, as each chooses"),
        ),
    ),
    "latency": Plot(
        "Round trips, and latency at a fixed rate",
        _rows(
            "p50_us",
            "round trip of 64 B",
            "call of 64 B",
            *(f"latency of 1 KiB at {rate} a second" for rate in ("1 000", "10 000", "50 000")),
            less_is_better=True,
        ),
    ),
    "busy": Plot("With other work on both cores", _rows("messages_per_s", "a busy machine: 1 KiB")),
    "channels": Plot(
        "Several channels, and a stalled consumer",
        _rows(
            "messages_per_s",
            "channels: 64 KiB over several",
            "channels: four of 1 KiB messages over two processes at each end",
            "channels: four of 64 KiB messages over two processes at each end",
            "a stalled consumer, 64 KiB",
        ),
    ),
    "disk": Plot(
        "Buffers on disk",
        _all(
            _rows("MB_per_s", "disk: 64 KiB messages, spilled"),
            _rows("durable_MB_per_s", "disk: durable buffer of 1 KiB messages"),
        ),
    ),
    "tls": Plot("Mutual TLS 1.3", _rows("MB_per_s", "TLS")),
    "flights": Plot("A query over processes", _flights),
    "planning": Plot("Placement", _planning),
    "nexmark": Plot("Nexmark", _nexmark),
    "spark": Plot(
        "Spark over channels",
        _all(
            _rows("rows_per_s", *_SPARK),
            _rows(
                "trigger_ms",
                *(f"Spark's micro-batch of 1 000 rows, {done}" for done in ("read", "written")),
                less_is_better=True,
            ),
        ),
    ),
    "steps": Plot(
        "Queries in steps",
        _all(
            _rows(
                "p50_ms",
                "a durable step: its input fixed, its output written",
                "a plain file synced twice",
                "an empty step of two members",
                "an empty step of two members with a circuit",
                *(f"{what} of 1 000 rows" for what in ("join", "count, sum and avg", "min and max")),
                "SQL over members, while steps run",
                less_is_better=True,
            ),
            _rows("blocked_ms", "a checkpoint of 1 GB of state", less_is_better=True),
            _rows("cpu_ratio", "the flights query", "Nexmark q3", "Nexmark q5", less_is_better=True),
        ),
    ),
    "collections": Plot(
        "Collections",
        _all(
            _rows("rows_per_s", "a snapshot of 10 million rows", "a CSV file of a million rows, ingested"),
            _rows("p50_ms", "from a write here to its row there, 50 a second", less_is_better=True),
            _rows("rows_per_s", *_APPENDS),
        ),
    ),
    "views": Plot(
        "Views",
        _all(
            _rows(
                "p50_ms",
                "a lookup of one present key, by a client",
                "a miss by a client: filter, aggregate, project, view",
                "a miss by a client: join, aggregate, project, view",
                less_is_better=True,
            ),
            _rows("keys_per_s", "lookups of 500 present keys at once, by a client"),
            _rows("requests_per_s", "a site like Lobsters: 95 % reads by Zipf's law, 5 % writes"),
            _rows("rows_per_s", "writes of 1 000 rows, with 1 % of a million keys present"),
            _rows("first_ms", "a new view over ten million rows", less_is_better=True),
        ),
    ),
}
"""Each plot by the name of its file."""

WIDTH, MARGIN, GAP = 860, 16, 32
BAR, LINE, HEAD = 14, 20, 30
"""Heights, in pixels: of a bar, of its line, and of a panel's two lines of title."""
CHARACTER, FIGURE = 6.8, 66
"""Widths, in pixels: of a character of a label at most, and of the figure after a bar."""
NARROW_LABEL = 32
"""Up to so many characters of the longest label, panels stand in two columns."""

STYLE = """
text { font: 12px system-ui, sans-serif; fill: #1f2328; }
.title { font-size: 15px; font-weight: 600; }
.panel { font-weight: 600; }
.muted { fill: #59636e; }
.paper { fill: #ffffff; }
.ours { fill: #2f6fd0; }
.other { fill: #b6bec8; }
.range { stroke: #1f2328; stroke-width: 1.2; }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3; }
.muted { fill: #9da7b3; }
.paper { fill: #15181e; }
.ours { fill: #5c9cf5; }
.other { fill: #57606a; }
.range { stroke: #e6edf3; }
}
"""


def drawn(plot: Plot, data: Data) -> str | None:
    """The plot as SVG; None if the run has none of its figures."""
    panels = list(plot.panels(data))
    if not panels:
        return None
    longest = max(len(name) for panel in panels for name in panel.bars)
    columns = 2 if longest <= NARROW_LABEL and len(panels) > 1 else 1
    width = (WIDTH - 2 * MARGIN - GAP * (columns - 1)) / columns
    svg = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg", role="img")
    ElementTree.SubElement(svg, "title").text = plot.title
    ElementTree.SubElement(svg, "style").text = STYLE
    paper = ElementTree.SubElement(svg, "rect", {"class": "paper", "width": str(WIDTH), "rx": "6"})
    _text(svg, MARGIN, 26, plot.title, "title")
    _legend(svg)
    top = 64.0
    for first in range(0, len(panels), columns):
        line = panels[first : first + columns]
        for column, panel in enumerate(line):
            left = MARGIN + column * (width + GAP)
            _panel(svg, panel, left, top, width=width, label=CHARACTER * longest)
        top += HEAD + LINE * max(len(panel.bars) for panel in line) + 20
    paper.set("height", f"{top:.0f}")
    svg.set("viewBox", f"0 0 {WIDTH} {top:.0f}")
    ElementTree.indent(svg, "")
    return ElementTree.tostring(svg, "unicode") + "\n"


def _legend(svg: ElementTree.Element) -> None:
    left = MARGIN
    for kind, words in (("ours", "netchannel, nebuli"), ("other", "others")):
        _bar(svg, kind, left, 38, width=10, height=10)
        _text(svg, left + 16, 47, words, "muted")
        left += 30 + int(CHARACTER * len(words))
    _line(svg, left, left + 18, 43)
    _text(svg, left + 24, 47, "lowest to highest round; the figure is the median", "muted")


def _panel(
    svg: ElementTree.Element, panel: Panel, left: float, top: float, *, width: float, label: float
) -> None:
    _text(svg, left, top + 10, panel.title, "panel")
    better = "less is better" if panel.less_is_better else "more is better"
    _text(svg, left, top + 25, f"{panel.unit}, {better}", "muted")
    start = left + label + 8
    scale = (width - label - 8 - FIGURE) / max(max(values) for values in panel.bars.values())
    for line, (name, values) in enumerate(panel.bars.items()):
        y = top + HEAD + 4 + LINE * line
        kind = "other" if name.startswith(OTHERS) else "ours"
        _text(svg, start - 8, y + 11, name.replace("`", ""), "", end=True)
        _bar(svg, kind, start, y, width=scale * median(values), height=BAR)
        if min(values) < max(values):
            _line(svg, start + scale * min(values), start + scale * max(values), y + BAR / 2)
        _text(svg, start + scale * max(values) + 6, y + 11, number(median(values)), "")


def _text(svg: ElementTree.Element, x: float, y: float, words: str, kind: str, *, end: bool = False) -> None:
    given = {"x": f"{x:.1f}", "y": f"{y:.1f}"}
    given |= {"class": kind} if kind else {}
    given |= {"text-anchor": "end"} if end else {}
    ElementTree.SubElement(svg, "text", given).text = words


def _bar(svg: ElementTree.Element, kind: str, x: float, y: float, *, width: float, height: float) -> None:
    sizes = {"x": f"{x:.1f}", "y": f"{y:.1f}", "width": f"{width:.1f}", "height": f"{height:.1f}"}
    ElementTree.SubElement(svg, "rect", {"class": kind, **sizes})


def _line(svg: ElementTree.Element, x1: float, x2: float, y: float) -> None:
    ends = {"x1": f"{x1:.1f}", "x2": f"{x2:.1f}", "y1": f"{y:.1f}", "y2": f"{y:.1f}"}
    ElementTree.SubElement(svg, "line", {"class": "range", **ends})


def main() -> None:
    """Draw what the files have."""
    for path in map(Path, sys.argv[1:]):
        data = json.loads(path.read_text("utf-8"))
        for name, plot in PLOTS.items():
            picture = drawn(plot, data)
            if picture is not None:
                path.with_name(f"{name}.svg").write_text(picture, "utf-8")


if __name__ == "__main__":
    main()
