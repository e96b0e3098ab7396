"""Sources, as people read of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from nebuli.cli.rows.source_views import age, listed, shown
from nebuli.ingestion.entries import Health, InstanceStatus, SupervisorStatus
from nebuli.ingestion.source_status import HeldBack, RawSourceStatus, SourceStatus

NOW = 1_700_000_000_000  # 2023-11-14T22:13:20Z
START = "nebuli source scale sales 2"
RAW = RawSourceStatus(
    reads="sales (/in/*.csv)",
    unit="bytes",
    addresses={f"/in/{n}.csv": 100 for n in range(8)},
    ends={f"/in/{n}.csv": 100 + n for n in range(8)},
    lag=28,
    error=None,
)
INSTANCE = InstanceStatus("sales", "1", "vm", 17, "running", NOW - 3_000, NOW - 1_500)
STATUS = SourceStatus(
    name="sales",
    version=2,
    rendition="r2",
    active="r1",
    phase="there",
    replicas=2,
    definition={},
    raw_sources={"data": RAW},
    remap_upper=NOW - 500,
    upper=NOW - 1_500,
    lag_ms=1_501,
    health="running",
    error=None,
    instances=[INSTANCE],
    supervisors=[SupervisorStatus("vm", 16, NOW - 60_000, NOW - 2_000)],
    last_error="sales: /in/9.csv is gone",
    undecoded=None,
    last_error_at=NOW - 300_000,
    holds=[
        HeldBack("sales", "mine", NOW - 60_000, (NOW + 1_000) / 1000),
        HeldBack("sales", "history", NOW - 600_000, None),
    ],
)


def test_a_source_is_shown_on_a_screen() -> None:
    """ST-AUX-1: the lag by raw source and part, the furthest behind first, and no more parts than are looked at."""
    said = "version 2, rendition r2; until it has caught up, the current rendition of its collection is r1"
    assert shown(STATUS, NOW, START).splitlines() == [
        f"source sales, there, {said}",
        "complete up to 2023-11-14T22:13:18.500Z, 1.5 s ago",
        "recorded up to 2023-11-14T22:13:19.500Z",
        "",
        "data: sales (/in/*.csv), lag 28 bytes",
        "part       recorded  available",
        "---------  --------  ---------",
        "/in/7.csv  100       107",
        "/in/6.csv  100       106",
        "/in/5.csv  100       105",
        "/in/4.csv  100       104",
        "/in/3.csv  100       103",
        "and 3 more",
        "",
        "supervisor: process 16 of vm, seen 2.0 s ago",
        "instance  health   pid  host  seen       upper",
        "--------  -------  ---  ----  ---------  ------------------------",
        "1         running  17   vm    3.0 s ago  2023-11-14T22:13:18.500Z",
        "",
        "last error, 5 min ago, at 2023-11-14T22:08:20.000Z, resolved:",
        "  sales: /in/9.csv is gone",
        "",
        "hold     collection  since                     expires",
        "-------  ----------  ------------------------  ------------------------",
        "history  sales       2023-11-14T22:03:20.000Z  never",
        "mine     sales       2023-11-14T22:12:20.000Z  2023-11-14T22:13:21.000Z",
    ]


def test_what_is_not_known_is_a_dash() -> None:
    away = replace(RAW, addresses={"/in/0.csv": 100}, ends=None, lag=None, error="/in is away")
    new = replace(
        STATUS, raw_sources={"data": away}, remap_upper=0, upper=0, lag_ms=None, last_error=None, holds=[]
    )
    lines = shown(new, NOW, START).splitlines()
    assert lines[1:3] == ["complete up to -: nothing is ingested yet", "recorded up to -"]
    assert lines[4:6] == [
        "data: sales (/in/*.csv), lag -",
        "  its end is unknown: /in is away",
    ]
    assert lines[8].split() == ["/in/0.csv", "100", "-"]
    assert lines[-1] == "no holds"
    alone = shown(replace(STATUS, supervisors=[]), NOW, START)
    assert f"\nno supervisor runs to restart an instance; start one with: {START}\n" in alone
    assert listed([new], NOW).splitlines()[2].split() == (
        ["sales", "2", "r1", "there", "1", "of", "2", "-", "-", "-", "running"]
    )


def test_an_error_is_what_holds_it_up_or_is_over() -> None:
    """Of a source that nobody runs is not known whether it is; whoever runs has the last word."""
    waiting = replace(INSTANCE, health="waiting", error=STATUS.last_error)
    held = replace(STATUS, instances=[INSTANCE, waiting], health="waiting", error=STATUS.last_error)
    text = shown(held, NOW, START)
    assert text.splitlines()[2] == "held up: sales: /in/9.csv is gone"
    assert "last error" not in text
    assert listed([held], NOW).splitlines()[2].endswith("  held up: sales: /in/9.csv is gone")
    long = listed([replace(held, error="sales: " + 100 * "much is wrong ")], NOW)
    assert len(long) < len(listed([held], NOW)) + 300
    assert long.endswith("...")
    other = shown(replace(held, last_error="sales: /in/8.csv is gone"), NOW, START)
    assert "Z, resolved:\n  sales: /in/8.csv is gone" in other
    nobody = replace(STATUS, instances=[replace(waiting, health="ended")], health=None)
    assert "20.000Z:\n  sales: /in/9.csv is gone" in shown(nobody, NOW, START)
    assert [listed([each], NOW).split()[-2:] for each in (nobody, replace(nobody, replicas=0), STATUS)] == [
        ["not", "running"],
        ["to", "0"],
        ["bytes", "running"],
    ]


@pytest.mark.parametrize("health", ["running", "waiting", "conflict"])
def test_an_instance_that_was_not_seen_for_half_a_minute_does_not_run(health: Health) -> None:
    """What starts one is said, and which it was, and when it was seen."""
    lost = replace(INSTANCE, health=health, at=NOW - 30_000)
    text = shown(replace(STATUS, instances=[lost]), NOW, START)
    assert f"no instance runs, but 2 should; start it with: {START}\n" in text
    assert " 17   vm    30.0 s ago" in text
    text = shown(replace(STATUS, instances=[replace(lost, at=NOW - 29_999)]), NOW, START)
    assert "no instance runs" not in text


def test_an_instance_that_has_ended_is_not_spoken_of() -> None:
    ended = replace(INSTANCE, health="ended")
    text = shown(replace(STATUS, instances=[ended], replicas=0), NOW, START)
    assert f"\nno instance runs, because the source was scaled to 0; start it with: {START}\n\n" in text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (-5, "0.0 s"),
        (1_240, "1.2 s"),
        (119_900, "119.9 s"),
        (120_000, "2 min"),
        (7_200_000, "2 h"),
        (259_200_000, "3 d"),
    ],
)
def test_ages(ms: int, text: str) -> None:
    assert age(ms) == text
