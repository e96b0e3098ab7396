"""Every contestant, and every kind of row, runs once and briefly, and has all figures that its table shows."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import replace

import psutil
import pytest

from benchmarks.company import CHATTY, COMPANIES, MEMORY, ONE_LOOP, PAIRS, TALKS, TWO_LOOPS, WAKING
from benchmarks.measures import TITLES
from benchmarks.peers import ALLOCATED, OURS, PEERS, SHARED
from benchmarks.rounds import Chosen, choose, measured
from benchmarks.row import Row
from benchmarks.rows import AWAY, ENCRYPTED, IDLE, OF_A_NODE, ROWS, TLS_SOCKET
from benchmarks.running import FREE, PINNED, RECEIVER_CORE, SENDER_CORE, Contestant, Setting, run
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
    ("1 MiB Arrow batches, as each chooses", ALLOCATED),
    # Not zenoh over shared memory, which loses messages where its watchdog does not run in time.
    ("1 MiB Arrow batches, as each chooses", "raw socket, cubic"),
    ("round trip of 64 B", ""),
    ("call of 64 B", ""),
    ("calls of 64 B, 100 at once", ""),
    ("latency of 1 KiB at 1 000 a second", OURS),
    ("latency of 1 KiB at 1 000 a second", "pyzmq"),
    ("channels: 64 KiB over several", "10 channels"),
    ("channels: idle", IDLE),
    ("channels: four of 1 KiB messages over two processes at each end", OF_A_NODE),
    ("disk: 64 KiB messages, spilled", AWAY),
    ("TLS: 1 KiB", ENCRYPTED),
    ("TLS: 1 MiB Arrow batches", TLS_SOCKET),
]
"""Rows and who runs there; everybody without a name."""
TOGETHER = ["a stalled consumer, 64 KiB", "disk: durable buffer of 1 KiB messages"]
"""Rows in which one follows another."""
BY_NAME = {row.name: row for row in ROWS}


def brief(row: Row) -> Row:
    work = row.work
    options = {name: min(value, FEW.get(name, value)) for name, value in work.options.items()}
    return replace(row, work=replace(work, seconds=SECONDS, warm_up=0, options=options))


def run_once(row: Row) -> dict[str, dict[str, list[float]]]:
    return measured(brief(row), 1, {})


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


SETTINGS = [
    (name, setting)
    for name, contestant in PEERS.items()
    for setting in contestant.settings
    if setting not in (PINNED, FREE)
]


@pytest.mark.parametrize(("name", "setting"), SETTINGS, ids=lambda value: getattr(value, "name", value))
def test_a_contestant_runs_in_each_of_its_settings(name: str, setting: Setting) -> None:
    row = brief(BY_NAME["64 KiB"])
    assert run(PEERS[name], row.work, row.sides, setting)["messages_per_s"] > 0


PLACED = Contestant("tests.benchmarks.placed")
WORK = Work(64)
ALL_CORES = sum(1 << core for core in os.sched_getaffinity(0))
CORES = len(os.sched_getaffinity(0))


def test_who_is_free_runs_on_any_core_and_all_others_on_their_own() -> None:
    pinned, free = (run(PLACED, WORK, setting=setting) for setting in (PINNED, FREE))
    assert (pinned["receiver_cores"], pinned["sender_cores"]) == (1 << RECEIVER_CORE, 1 << SENDER_CORE)
    assert free["receiver_cores"] == free["sender_cores"] == ALL_CORES


def test_both_ends_of_a_pair_share_a_core_if_they_are_to() -> None:
    for core in (RECEIVER_CORE, SENDER_CORE):
        found = run(replace(PLACED, cores=((core, core),)), WORK)
        assert found["receiver_cores"] == found["sender_cores"] == 1 << core


def test_a_contestant_may_last_longer_than_its_row() -> None:
    found = run(replace(PLACED, lasts=(7, 3)), WORK)
    assert (found["warm_up"], found["seconds"]) == (7, 3)


@pytest.mark.parametrize(
    ("company", "processes"),
    {
        "": -1,
        ONE_LOOP: CORES,
        TWO_LOOPS: 2 * CORES,
        PAIRS: 2 * WAKING,
        MEMORY: CORES,
        CHATTY: 3 * TALKS,
    }.items(),
)
def test_company_is_there_while_it_is_measured_and_gone_then(company: str, processes: int) -> None:
    found = run(replace(PLACED, company=company), WORK)
    assert found["beside"] == processes + 1  # the one that started them
    deadline = time.monotonic() + 60
    while company and _runs(int(found["group"])):
        assert time.monotonic() < deadline, f"{company} has not gone"
        time.sleep(0.01)


def _runs(group: int) -> bool:
    """Whether any process of the group does."""
    return any(
        os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE
        for process in psutil.process_iter()
        if psutil.pid_exists(process.pid)
    )


def test_all_company_is_measured() -> None:
    busy = [row for row in ROWS if row.name.startswith("a busy machine")]
    assert [row.work.size for row in busy] == [64, 1 << 10, 1 << 16]
    for row in busy:
        assert {contestant.company for contestant in row.contestants.values()} == {"", *COMPANIES}


@pytest.mark.timed
def test_the_best_setting_is_chosen_and_measured() -> None:
    slow, plain = Setting("slow", options={"pause_s": 0.01}), Setting("plain")
    contestant = Contestant("tests.benchmarks.faulty", {"fault": "none"}, settings=(slow, plain))
    row = Row("a row", replace(WORK, seconds=SECONDS, warm_up=0), {"it": contestant}, ("messages_per_s",))
    chosen = choose(row)
    assert chosen["it"].name == plain.name
    assert chosen["it"].tried[plain.name] > chosen["it"].tried[slow.name]
    hindered = measured(row, 1, {"it": Chosen(slow.name, {})})["it"]["messages_per_s"][0]
    assert measured(row, 1, chosen)["it"]["messages_per_s"][0] > 2 * hindered


def test_whoever_has_one_setting_has_no_choice() -> None:
    row = replace(BY_NAME["64 B"], contestants={"it": PLACED})
    assert choose(row) == {}


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
