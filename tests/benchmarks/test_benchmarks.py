"""The benchmark runs, and does not let a wrong message pass."""

from __future__ import annotations

import pytest

from benchmarks.report import figures, table
from benchmarks.rows import CONTESTANTS, OURS, ROWS, Row, Target
from benchmarks.running import Run, run
from benchmarks.work import Result, Watch, Work, Wrong


@pytest.mark.processes
@pytest.mark.parametrize("work", [Work(64, seconds=0.1), Work(1 << 20, arrow=True, seconds=0.1)])
def test_a_run_counts_what_arrived(work: Work) -> None:
    done = run(CONTESTANTS[OURS].module, work)
    assert done.received.messages == done.sent.messages > 100
    assert done.rate() > 0


@pytest.mark.parametrize("numbers", [[0, 1, 3], [0, 0], [1]])
def test_a_message_that_is_not_due_is_seen(numbers: list[int]) -> None:
    work = Work(64)
    look = Watch(work).look()
    *right, wrong = [work.messages()[number] for number in numbers]
    for message in right:
        look(message)
    with pytest.raises(Wrong, match="was due"):
        look(wrong)


def test_ratios_are_against_the_best_of_those_beside() -> None:
    def at(rate: int) -> list[Run]:
        return [Run(Result(rate, 1.0, 0.5, rate), Result(rate, 1.0, 0.5, rate))]

    row = Row("r", Work(64), ("a", "b"), (Target(1.3, ("a", "b")), Target(1.6, ("a",))))
    found = {name: figures(row, at(rate)) for name, rate in {OURS: 300, "a": 200, "b": 250}.items()}
    text = table(row, found)
    assert "wanted: 1.3 x b; measured: 1.20 x: **not reached**" in text
    assert "wanted: 1.6 x a; measured: 1.50 x: **not reached**" in text


def test_every_row_names_contestants_that_there_are() -> None:
    for row in ROWS:
        assert {*row.beside, *[name for target in row.targets for name in target.beside]} <= set(CONTESTANTS)
