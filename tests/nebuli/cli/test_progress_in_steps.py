from __future__ import annotations

import pytest

from nebuli.cli.stepped.progress_in_steps import ProgressInSteps
from nebuli.steps.local.skipped_steps import SkippedRows
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol.events import Order


def said(capsys: pytest.CaptureFixture[str], *orders: Order) -> list[str]:
    progress = ProgressInSteps(2)
    capsys.readouterr()
    for order in orders:
        progress.hear(order)
    return [line.partition(" s  ")[2] for line in capsys.readouterr().err.splitlines()]


def test_a_query_that_waits_for_rows_says_nothing_new(capsys: pytest.CaptureFixture[str]) -> None:
    made = [ev.CheckpointMade(step, ()) for step in (7, 7, 7, 8)]
    assert said(capsys, *made) == ["checkpoint at step 7", "checkpoint at step 8"]


def test_a_checkpoint_that_has_nothing_is_not_said(capsys: pytest.CaptureFixture[str]) -> None:
    """Who has seen one takes it that a kill costs what came behind it, and not everything."""
    assert said(capsys, ev.CheckpointMade(0, ()), ev.CheckpointMade(1, ())) == ["checkpoint at step 1"]


def test_a_recovery_is_said_with_its_reason_and_where_it_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    orders = (ev.EpochRuns(1, 0), ev.ClaimEpoch(1, "member 1 was lost: gone"), ev.EpochRuns(2, 1200))
    assert said(capsys, *orders) == [
        "2 members running, from the beginning",
        "member 1 was lost: gone; all members return to the last checkpoint",
        "running again, from step 1,200",
    ]


def test_late_rows_are_those_that_members_said_last_added_up() -> None:
    """They say how many there were since the first step, again and again."""
    progress = ProgressInSteps(2)
    assert progress.warnings() == []
    for member, rows in ((0, 2), (1, 3), (0, 5)):
        progress.hear(ev.RowsLate(member, "hours", rows))
    assert progress.late_rows() == {"hours": 8}
    (warning,) = progress.warnings()
    assert warning.startswith("8 late rows ")
    assert ": 8 at operator hours; " in warning


def test_rows_without_a_time_are_added_up_apart_and_said_with_their_column() -> None:
    progress = ProgressInSteps(2)
    for member, rows in ((0, 2), (1, 3), (0, 5)):
        progress.hear(ev.RowsWithoutTime(member, "hours", "at", rows))
    progress.hear(ev.RowsLate(0, "hours", 1))
    data = progress.to_data()
    assert (data["late_rows"], data["rows_without_time"]) == ({"hours": 1}, {"hours": 8})
    _, warning = progress.warnings()
    assert warning.startswith("8 rows ")
    assert ": 8 at operator hours, where column at is NULL; " in warning
    assert "(at IS NOT NULL)" in warning
    assert warning.endswith("--state")
    progress.scaled(1)
    assert progress.warnings() == []


def test_how_it_ended_counts_epochs_and_checkpoints_of_this_run() -> None:
    progress = ProgressInSteps(2)
    for order in (
        ev.EpochRuns(5, 40),
        ev.CheckpointMade(44, ()),
        ev.EpochRuns(6, 44),
        ev.InputsEnded(50),
        ev.CheckpointMade(50, ()),
    ):
        progress.hear(order)
    data = progress.to_data()
    del data["seconds"]
    assert data == {
        "members": 2,
        "steps": 50,
        "checkpoints": 2,
        "epochs": 2,
        "late_rows": {},
        "rows_without_time": {},
        "open_windows": {},
        "skipped_rows": [],
    }


def test_rows_that_are_left_out_are_counted_by_step_and_input_with_the_outputs_that_keep_them() -> None:
    progress = ProgressInSteps(2)
    left_out = [
        SkippedRows(7, "sales", 1, "state/skipped-7-sales.arrow", []),
        SkippedRows(1300, "returns", 2500, "state/skipped-1300-returns.arrow", ["rows", "sums"]),
        SkippedRows(1301, "", 0, "", []),
    ]
    progress.leave_out(left_out)
    first, second, third = progress.skipped_rows()
    assert first.startswith("step 7 skips 1 row of input sales")
    assert first.endswith(" state/skipped-7-sales.arrow")
    assert second.startswith("step 1,300 skips 2,500 rows of input returns")
    assert " state/skipped-1300-returns.arrow; " in second
    assert second.endswith(" rows, sums")
    assert third.startswith("step 1,301 leaves windows open, ")
    assert progress.to_data()["skipped_rows"][1] == {
        "step": 1300,
        "input": "returns",
        "rows": 2500,
        "file": "state/skipped-1300-returns.arrow",
        "outputs": ["rows", "sums"],
        "unfit": False,
    }
