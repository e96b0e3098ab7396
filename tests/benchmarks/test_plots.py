"""Plots have a bar for each contestant, as long as its figure, and are those of the files next to them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from benchmarks.plots import OTHERS, PLOTS, drawn

DOCS = Path(__file__).parents[2] / "docs"
FOLDER = DOCS / "benchmarks"
RUNS = {path.stem: json.loads(path.read_text("utf-8")) for path in sorted(FOLDER.glob("*.json"))}
SVG = "{http://www.w3.org/2000/svg}"


def _run(**rounds: list[float]) -> dict[str, Any]:
    return {"rows": {"1 KiB": {name: {"messages_per_s": values} for name, values in rounds.items()}}}


def _shapes(picture: str, tag: str, kinds: str) -> list[ElementTree.Element]:
    shapes = ElementTree.fromstring(picture).iter(f"{SVG}{tag}")
    return [each for each in shapes if re.fullmatch(kinds, each.get("class", ""))]


def test_a_bar_is_as_long_as_its_median_and_its_line_spans_the_rounds() -> None:
    picture = drawn(PLOTS["messages"], _run(netchannel=[300, 400, 500], pyzmq=[200, 200, 200]))
    assert picture is not None
    ours, theirs = _shapes(picture, "rect", "ours|other")[-2:]
    assert (ours.get("class"), theirs.get("class")) == ("ours", "other")
    assert float(ours.attrib["width"]) == pytest.approx(2 * float(theirs.attrib["width"]), abs=0.2)
    *_, line = _shapes(picture, "line", "range")  # one that does not move has none
    start, end = (float(line.attrib[x]) - float(ours.attrib["x"]) for x in ("x1", "x2"))
    width = float(ours.attrib["width"])
    assert [start, end] == pytest.approx([0.75 * width, 1.25 * width], abs=0.2)
    words = [each.text for each in ElementTree.fromstring(picture).iter(f"{SVG}text")]
    assert words[-4:] == ["netchannel", "400", "pyzmq", "200"]


def test_a_run_without_a_plots_rows_has_no_such_plot() -> None:
    assert [name for name, plot in PLOTS.items() if drawn(plot, _run(netchannel=[1]))] == ["messages"]


def test_the_plots_are_those_of_the_committed_figures() -> None:
    pictures = {
        name: [picture for run in RUNS.values() if (picture := drawn(plot, run)) is not None]
        for name, plot in PLOTS.items()
    }
    assert {path.stem for path in FOLDER.glob("*.svg")} == pictures.keys()
    for name, (picture,) in pictures.items():
        assert (FOLDER / f"{name}.svg").read_text("utf-8") == picture, (
            f"run python -m benchmarks.plots: {name}"
        )


def test_the_summary_shows_each_plot_and_links_each_table() -> None:
    page = (DOCS / "benchmarks.md").read_text("utf-8")
    assert sorted(re.findall(r"!\[[^]]+\]\(benchmarks/(\w+)\.svg\)", page)) == sorted(PLOTS)
    assert {path.name for path in FOLDER.glob("*.md")} <= set(re.findall(r"\]\(benchmarks/(\w+\.md)\)", page))


def test_no_page_judges_a_target() -> None:
    pages = [DOCS.parent / "README.md", DOCS / "benchmarks.md", *FOLDER.glob("*.md")]
    assert [page.name for page in pages if re.search(r"not reached|[Ww]anted", page.read_text("utf-8"))] == []


def test_a_plot_has_both_schemes_and_loads_nothing() -> None:
    for path in FOLDER.glob("*.svg"):
        text = path.read_text("utf-8")
        assert "prefers-color-scheme: dark" in text
        assert re.findall(r"url\(|href|https?://(?!www\.w3\.org/2000/svg)", text) == []


def test_ours_are_told_from_others_by_name() -> None:
    names = {name for run in RUNS.values() for row in run.get("rows", {}).values() for name in row}
    ours = {name for name in names if name.startswith(("netchannel", "nebuli"))}
    assert ours
    assert not any(name.startswith(OTHERS) for name in ours)
    assert {name for name in names if name.startswith(("pyzmq", "SQLite", "Redis", "NATS", "raw"))} <= {
        name for name in names if name.startswith(OTHERS)
    }
