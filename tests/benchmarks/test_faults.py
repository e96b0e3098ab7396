"""A message that is lost, doubled, swapped or changed does not pass: negative controls of the measurement."""

from __future__ import annotations

import pytest

from benchmarks.peers import OURS, PEERS
from benchmarks.rows import ROWS
from benchmarks.running import ATTEMPTS, Contestant, Failed, run
from benchmarks.throughput import Watch
from benchmarks.work import TooFew, Work, Wrong

WORK = Work(64, seconds=0.1, warm_up=0.02)


@pytest.mark.processes
@pytest.mark.parametrize("fault", ["drop", "double", "swap", "change", "last"])
def test_a_contestant_that_does_so_ends_the_run(fault: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failed):
        run(Contestant("tests.benchmarks.faulty", {"fault": fault}), WORK)
    assert "once more" not in capfd.readouterr().err  # but the trace of the process that saw it


@pytest.mark.processes
def test_a_peer_that_does_so_is_tried_again_and_has_no_figure(capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(Failed):
        run(Contestant("tests.benchmarks.faulty", {"fault": "drop"}, may_fail=True), WORK)
    assert capfd.readouterr().err.count("once more") == ATTEMPTS - 1


def test_ours_may_not() -> None:
    ours = [
        contestant
        for row in ROWS
        for contestant in row.contestants.values()
        if contestant.module == PEERS[OURS].module or ".scenarios." in contestant.module
    ]
    assert not any(contestant.may_fail for contestant in ours)


@pytest.mark.processes
def test_the_same_contestant_without_a_fault_passes() -> None:
    assert run(Contestant("tests.benchmarks.faulty", {"fault": "none"}), WORK)["messages"] > 0


@pytest.mark.processes
def test_a_run_without_enough_to_measure_is_tried_again_and_has_no_figure(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(TooFew):
        run(Contestant("tests.benchmarks.faulty", {"fault": "few"}), WORK)
    assert capfd.readouterr().err.count("once more") == ATTEMPTS - 1


@pytest.mark.parametrize("numbers", [[0, 1, 3], [0, 0], [1]])
@pytest.mark.parametrize("work", [Work(64), Work(1 << 10, arrow=True)], ids=["bytes", "arrow"])
def test_a_message_that_is_not_due_is_seen(work: Work, numbers: list[int]) -> None:
    look = Watch(work).look()
    *right, wrong = [work.messages()[number] for number in numbers]
    for message in right:
        look(message)
    with pytest.raises(Wrong, match="was due"):
        look(wrong)


def test_a_message_of_another_body_is_seen() -> None:
    work = Work(64)
    look = Watch(work).look()
    *right, last = work.messages()
    for message in right:
        look(message)
    with pytest.raises(Wrong, match="changed"):
        look(last[:-1] + b"\x01")


def test_streams_are_watched_each_by_itself_and_counted_together() -> None:
    work = Work(64, different=3, warm_up=0)
    watch = Watch(work)
    looks = watch.look(), watch.look()
    for message in work.messages():
        for look in looks:
            look(message)
    looks[0](work.messages()[0])
    assert watch.result().messages == 7
