"""Medians, spreads, ratios per round and verdicts, by figures made by hand; and the page has those of its file."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.measures import spread
from benchmarks.peers import NEBULI, OURS
from benchmarks.planning import SIZES
from benchmarks.report import SECTIONS, filled, renewed, table, verdicts
from benchmarks.row import Row
from benchmarks.rows import ROWS
from benchmarks.running import Contestant
from benchmarks.spark.rows import SPARK_ROWS
from benchmarks.steps.rows import STEP_ROWS
from benchmarks.storage.rows import COLLECTION_ROWS
from benchmarks.targets import (
    AtLeast,
    AtMost,
    FairShare,
    KeepsLike,
    MoreAtMost,
    Reaching,
    Target,
    Within,
    contestants_of,
)
from benchmarks.work import Work

DOCS = Path(__file__).parents[2] / "docs" / "benchmarks"
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


def row(*targets: Target, base: str = OURS) -> Row:
    return Row("a row", Work(64), dict.fromkeys(FOUND, SOMEBODY), ("messages_per_s",), targets, base=base)


def test_a_figure_has_its_median_and_its_range() -> None:
    assert spread([3.0, 1_200.0, 12.34]) == "12.3 (3 to 1,200)"
    assert spread([0.5, 0.5], " x") == "0.50 x"


def test_ratios_are_of_the_same_round() -> None:
    lines = table(row(), FOUND, {}).splitlines()
    assert "| b | 300 (250 to 400) | 1.10 x (0.90 to 1.20) |  |" in lines  # 300/250, 360/400, 330/300


def test_the_title_says_who_is_put_beside_a_peer() -> None:
    ours = f"{NEBULI}: synced"
    found = {ours: {"rows_per_s": [300.0]}, "a": {"rows_per_s": [200.0]}}
    lines = table(replace(row(base=ours), columns=("rows_per_s",)), found, {}).splitlines()
    assert lines[2] == "|  | rows/s | nebuli / it |"
    assert "| a | 200 | 1.50 x |" in lines


def test_of_ours_alone_each_is_put_beside_the_first() -> None:
    lines = table(row(base="a"), FOUND, {}).splitlines()
    assert "| b | 300 (250 to 400) | 1.50 x (1.25 to 2) |  |" in lines


def test_processor_time_is_shown_for_both_sides() -> None:
    assert "| netchannel | 330 (300 to 360) |  | 0.50 + 0.25 |" in table(row(), FOUND, {})


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
        (
            FairShare(0.8, 1 / 2, "b", "messages_per_s", "a"),
            "least 0.8 x its fair share, 1/2 of b; measured 1.33 x (1 to 1.60): reached",
        ),
        (
            FairShare(0.8, 1, "b", "messages_per_s", "a"),
            "least 0.8 x its fair share, 1/1 of b; measured 0.67 x (0.50 to 0.80): **not reached**",
        ),
        (
            KeepsLike(0.8, ("a", "b"), "messages_per_s", ("b", OURS)),
            (
                "least 0.8 x the part of its figure alone that a keeps (0.67 (0.50 to 0.80); b 0.91 (0.83 to 1.11)); "
                "measured 1.36 x (1.04 to 2.22): reached"
            ),
        ),
        (
            KeepsLike(0.8, ("b", OURS), "messages_per_s", ("a", "b")),
            (
                "least 0.8 x the part of its figure alone that b keeps (0.91 (0.83 to 1.11); a 0.67 (0.50 to 0.80)); "
                "measured 0.73 x (0.45 to 0.96): **not reached**"
            ),
        ),
        (Within(330, "messages_per_s", OURS), "most 330; measured 330 (300 to 360): reached"),
        (Reaching(330, "messages_per_s", OURS), "least 330; measured 330 (300 to 360): reached"),
        (Reaching(1_331, "messages_per_s", OURS), "least 1,331; measured 330 (300 to 360): **not reached**"),
        (Within(329, "messages_per_s", OURS), "most 329; measured 330 (300 to 360): **not reached**"),
    ],
)
def test_a_target_is_judged_by_the_median_of_its_ratios(target: Target, verdict: str) -> None:
    of = target.of[0] if isinstance(target, KeepsLike) else target.of
    assert verdicts(row(target), FOUND) == f"- {of}, messages/s: wanted at {verdict}"


@pytest.mark.parametrize(
    "target",
    [
        AtLeast(1, ("a", "newer"), "messages_per_s", OURS),
        AtMost(1, "newer", "messages_per_s", OURS),
        MoreAtMost(1, "a", "messages_per_s", "newer"),
        FairShare(1, 1 / 2, "newer", "messages_per_s", "a"),
        KeepsLike(1, ("a", "b"), "messages_per_s", ("newer", OURS)),
        Within(1, "messages_per_s", "newer"),
    ],
    ids=lambda target: type(target).__name__,
)
def test_a_run_may_be_older_than_a_contestant(target: Target) -> None:
    """Then nothing is said of what that is to reach."""
    assert verdicts(row(target), FOUND) == ""


def test_a_measure_may_be_put_beside_another() -> None:
    found = {"x": {"taken_MB_per_s": [8.0]}, "y": {"MB_per_s": [10.0]}}
    target = AtLeast(0.8, ("y",), "taken_MB_per_s", "x", beside_measure="MB_per_s")
    assert "measured 0.80 x: reached" in target.verdict(found)


def test_some_may_be_put_beside_another_than_the_rest() -> None:
    lines = table(replace(row(), bases={"a": "b", "b": "b"}), FOUND, {}).splitlines()
    assert "| b | 300 (250 to 400) |  |  |" in lines
    assert "| a | 200 | 1.50 x (1.25 to 2) |  |" in lines


def test_the_setting_is_shown_of_whoever_has_several() -> None:
    lines = table(row(), FOUND, {"b": {"name": "free", "tried": {"free": 2.0, "pinned": 1.0}}}).splitlines()
    assert lines[2].endswith("| setting |")
    assert "| a | 200 | 1.65 x (1.50 to 1.80) |  |  |" in lines
    assert "| b | 300 (250 to 400) | 1.10 x (0.90 to 1.20) |  | free |" in lines


def test_a_page_keeps_what_stands_around_its_figures() -> None:
    page = (
        "before\n<!-- figures -->\nold\n<!-- end of figures -->\n<!-- flights -->\n<!-- end of flights -->\n"
    )
    renewed_ = renewed(page, "figures", "new")
    assert renewed_ == page.replace("old\n", "\nnew\n")
    assert renewed(renewed_, "figures", "new") == renewed_
    with pytest.raises(ValueError, match="no marks 'planning'"):
        renewed(page, "planning", "new")


PAGES = {
    "channels.md": "channels.json",
    "collections.md": "collections.json",
    "flights.md": "channels.json",
    "nexmark.md": "nexmark.json",
    "planning.md": "channels.json",
    "spark.md": "spark.json",
    "steps.md": "steps.json",
    "views.md": "views.json",
}


@pytest.mark.parametrize(("page", "data"), PAGES.items())
def test_the_page_has_the_figures_of_its_file(page: str, data: str) -> None:
    text = (DOCS / page).read_text("utf-8")
    assert filled(text, json.loads((DOCS / data).read_text("utf-8"))) == text


def test_all_that_is_measured_is_on_a_page() -> None:
    pages = "".join((DOCS / page).read_text("utf-8") for page in PAGES)
    assert all(f"<!-- end of {name} -->" in pages for name in SECTIONS)


def test_the_pages_have_all_sizes_that_planning_is_measured_at() -> None:
    """PL-BIG-1: up to that of the test of planning."""
    rows = json.loads((DOCS / "channels.json").read_text("utf-8"))["planning"]
    assert [row["nodes"] for row in rows] == [size[0] for size in SIZES]
    assert (SIZES[-1], rows[-1]["operators"]) == ((10_000, 1_000), 1_000)


def test_targets_are_about_contestants_and_measures_of_their_row() -> None:
    for each in (*ROWS, *SPARK_ROWS, *STEP_ROWS, *COLLECTION_ROWS):
        assert {each.base, *each.bases, *each.bases.values()} <= set(each.contestants)
        for target in each.targets:
            assert contestants_of(target) <= set(each.contestants)
            assert target.measure in each.columns
