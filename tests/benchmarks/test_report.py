"""Medians, spreads, ratios per round and verdicts, by figures made by hand; and the page has those of its file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.measures import spread
from benchmarks.report import BEGIN, END, renewed, report, table
from benchmarks.rows import OURS, ROWS, Row
from benchmarks.running import Contestant
from benchmarks.spark.rows import SPARK_ROWS
from benchmarks.targets import AtLeast, AtMost, MoreAtMost, Within
from benchmarks.work import Work

DOCS = Path(__file__).parents[2] / "docs"
SOMEBODY = Contestant("somebody")
FOUND = {
    OURS: {
        "messages_per_s": [300.0, 360.0, 330.0],
        "receiver_cpu_s_per_GB": [0.5],
        "sender_cpu_s_per_GB": [0.25],
    },
    "a": {"messages_per_s": [200.0, 200.0, 200.0]},
    "b": {"messages_per_s": [250.0, 400.0, 300.0]},
}


def row(*targets: AtLeast | AtMost | Within | MoreAtMost, base: str = OURS) -> Row:
    return Row("a row", Work(64), dict.fromkeys(FOUND, SOMEBODY), ("messages_per_s",), targets, base=base)


def test_a_figure_has_its_median_and_its_range() -> None:
    assert spread([3.0, 1_200.0, 12.34]) == "12.3 (3 to 1,200)"
    assert spread([0.5, 0.5], " x") == "0.50 x"


def test_ratios_are_of_the_same_round() -> None:
    lines = table(row(), FOUND).splitlines()
    assert "| b | 300 (250 to 400) | 1.10 x (0.90 to 1.20) |  |" in lines  # 300/250, 360/400, 330/300


def test_of_ours_alone_each_is_put_beside_the_first() -> None:
    lines = table(row(base="a"), FOUND).splitlines()
    assert "| b | 300 (250 to 400) | 1.50 x (1.25 to 2) |  |" in lines


def test_processor_time_is_shown_for_both_sides() -> None:
    assert "| netchannel | 330 (300 to 360) |  | 0.50 + 0.25 |" in table(row(), FOUND)


@pytest.mark.parametrize(
    ("target", "verdict"),
    [
        (
            AtLeast(1.1, ("a", "b"), "messages_per_s", OURS),
            "least 1.1 x b; measured 1.10 x (0.90 to 1.20): reached",
        ),
        (
            AtLeast(1.7, ("a",), "messages_per_s", OURS),
            "least 1.7 x a; measured 1.65 x (1.50 to 1.80): **not reached**",
        ),
        (AtMost(1.7, "a", "messages_per_s", OURS), "most 1.7 x a; measured 1.65 x (1.50 to 1.80): reached"),
        (AtMost(1, "a", "messages_per_s", "b"), "most 1 x a; measured 1.50 x (1.25 to 2): **not reached**"),
        (
            MoreAtMost(120, "a", "messages_per_s", OURS),
            "most 120 above a; measured 130 (100 to 160) above: **not reached**",
        ),
        (Within(330, "messages_per_s", OURS), "most 330; measured 330 (300 to 360): reached"),
        (Within(329, "messages_per_s", OURS), "most 329; measured 330 (300 to 360): **not reached**"),
    ],
)
def test_a_target_is_judged_by_the_median_of_its_ratios(
    target: AtLeast | AtMost | Within | MoreAtMost, verdict: str
) -> None:
    assert table(row(target), FOUND).splitlines()[-1] == f"- messages/s: wanted at {verdict}"


def test_a_measure_may_be_put_beside_another() -> None:
    found = {"x": {"taken_MB_per_s": [8.0]}, "y": {"MB_per_s": [10.0]}}
    target = AtLeast(0.8, ("y",), "taken_MB_per_s", "x", beside_measure="MB_per_s")
    assert "measured 0.80 x: reached" in target.verdict(found)


def test_a_page_keeps_what_stands_around_its_figures() -> None:
    page = f"before\n{BEGIN}old\n{END}after\n"
    assert renewed(page, "new") == f"before\n{BEGIN}\nnew\n{END}after\n"
    assert renewed(renewed(page, "new"), "new") == renewed(page, "new")


@pytest.mark.parametrize("name", ["benchmarks", "benchmarks-spark"])
def test_the_page_has_the_figures_of_its_file(name: str) -> None:
    page = (DOCS / f"{name}.md").read_text()
    assert renewed(page, report(json.loads((DOCS / f"{name}.json").read_text()))) == page


def test_targets_are_about_contestants_and_measures_of_their_row() -> None:
    for each in (*ROWS, *SPARK_ROWS):
        assert each.base in each.contestants
        for target in each.targets:
            beside = getattr(target, "beside", ())
            names = {target.of, *((beside,) if isinstance(beside, str) else beside)}
            assert names <= set(each.contestants)
            assert target.measure in each.columns
