"""Every contestant, and every kind of row, runs once and briefly, and has all figures that its table shows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest

from benchmarks.measures import TITLES
from benchmarks.rounds import measured
from benchmarks.rows import AWAY, ENCRYPTED, IDLE, OURS, PEERS, ROWS, SHARED, Row
from benchmarks.work import Work

pytestmark = pytest.mark.processes

SECONDS = 0.05
FEW = {"channels": 7, "MB": 70}

EACH = [
    ("64 B", ""),
    ("64 KiB", "Arrow Flight"),
    ("64 KiB", "raw socket"),
    ("1 MiB Arrow batches", OURS),
    ("1 MiB Arrow batches", "Arrow Flight"),
    ("1 MiB Arrow batches", "pyzmq"),
    # Not zenoh over shared memory, which loses messages where its watchdog does not run in time.
    ("1 MiB Arrow batches, as each chooses", "raw socket, cubic"),
    ("round trip of 64 B", ""),
    ("latency of 1 KiB at 1 000 a second", OURS),
    ("latency of 1 KiB at 1 000 a second", "pyzmq"),
    ("channels: 64 KiB over several", "10 channels"),
    ("channels: idle", IDLE),
    ("channels: four of 1 KiB messages over two processes at each end", "2 + 2 processes, one node"),
    ("disk: 64 KiB messages, spilled", AWAY),
    ("TLS: 1 KiB", ENCRYPTED),
]
"""Rows and who runs there; everybody without a name."""
TOGETHER = ["a stalled consumer, 64 KiB", "disk: durable buffer of 1 KiB messages"]
"""Rows in which one follows another."""
BY_NAME = {row.name: row for row in ROWS}


def brief(row: Row) -> Work:
    work = row.work
    options = {name: min(value, FEW.get(name, value)) for name, value in work.options.items()}
    return replace(work, seconds=SECONDS, warm_up=0, options=options)


def run_once(row: Row) -> dict[str, dict[str, list[float]]]:
    return measured(row, 1, brief(row))


@pytest.mark.parametrize(
    ("row", "name"),
    [
        (BY_NAME[row], name)
        for row, given in EACH
        for name in ([given] if given else BY_NAME[row].contestants)
    ],
    ids=lambda value: value if isinstance(value, str) else value.name,
)
def test_a_contestant_has_all_figures_of_its_row(row: Row, name: str) -> None:
    found = run_once(replace(row, contestants={name: row.contestants[name]}))
    assert found[name]["messages"][0] > 0
    assert all(found[name][column][0] > 0 for column in row.columns)


@pytest.mark.parametrize("name", TOGETHER)
def test_whoever_follows_is_measured_by_the_one_before(name: str) -> None:
    row = BY_NAME[name]
    found = run_once(row)
    assert all(target.verdict(found) for target in row.targets)
    if "bytes_per_sync" in row.columns:
        first, second = (found[name]["bytes_per_sync"][0] for name in row.contestants)
        assert second == pytest.approx(first, rel=0.01)
    else:
        for follower, contestant in row.contestants.items():
            if contestant.follows:
                half = found[contestant.follows]["messages_per_s"][0] / 2
                assert found[follower]["messages"][0] == pytest.approx(half * SECONDS, rel=0.01, abs=1)


def test_every_peer_runs_here() -> None:
    run_here = {name for row, given in EACH for name in ([given] if given else BY_NAME[row].contestants)}
    assert set(PEERS) - {SHARED} <= run_here


def test_every_scenario_runs_here() -> None:
    here = [BY_NAME[name] for name in {row for row, _ in EACH} | set(TOGETHER)]
    assert _modules(here) == _modules(ROWS)


def _modules(rows: Iterable[Row]) -> set[str]:
    return {contestant.module for row in rows for contestant in row.contestants.values()}


def test_every_figure_has_a_title() -> None:
    assert {column for row in ROWS for column in row.columns} <= set(TITLES)
