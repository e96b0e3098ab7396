"""The progress of a query in steps on standard error, and its outcome as JSON."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import click

from nebuli.cancellation import cancelled
from nebuli.cli.row_progress import RowProgress
from nebuli.connectors.errors import fill_in_times, without_time
from nebuli.control.late_report import rows_are
from nebuli.dataflow.progress import spelled
from nebuli.log_output import is_quiet
from nebuli.steps.protocol import events as ev

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping, Sequence

    from nebuli.steps.local.local_run import LocalRun
    from nebuli.steps.local.skipped_steps import SkippedRows
    from nebuli.steps.protocol.events import Order

_SHOWN_EVERY_S = 0.2


class _Lines(logging.Handler):
    """A log handler that prints records as lines of the progress."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(logging.WARNING)
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        self._say(record.getMessage())


class ProgressInSteps:
    """The progress by a coordinator's orders: a line on standard error for each change.

    On a terminal, the rows and steps so far are in a line below them, if ``shows_rows``.
    """

    def __init__(self, members: int, *, shows_rows: bool = True) -> None:
        self._members = members
        self._shows_rows = shows_rows
        self._began = time.monotonic()
        self._epochs = 0
        self._step = 0
        self._checkpoints = 0
        self._saved = 0  # the checkpoint at the beginning is empty, and not announced
        self._late: dict[tuple[int, str], int] = {}
        self._without_time: dict[tuple[int, str], int] = {}
        self._open: dict[tuple[int, str], tuple[int, int]] = {}
        self._times: dict[str, str] = {}
        """The time column of each window that has dropped rows."""
        self._skipped: Sequence[SkippedRows] = ()
        self.say(f"starting {self._counted()}")

    def say(self, text: str) -> None:
        """Print a line with the time since the beginning."""
        if not is_quiet():
            click.echo(f"{time.monotonic() - self._began:6.1f} s  {text}", err=True)

    def take_logs(self) -> None:
        """Add log lines of members and sinks. The coordinator's would repeat its orders, and are left out."""
        lines = _Lines(self.say)
        for name in ("nebuli.steps.member", "nebuli.connectors"):
            logger = logging.getLogger(name)
            logger.addHandler(lines)
            logger.propagate = False
        logging.getLogger("nebuli.steps.coordinator").setLevel(logging.ERROR)

    def hear(self, order: Order) -> None:
        """Process an order of the coordinator."""
        match order:
            case ev.EpochRuns(_, step):
                self._epochs += 1
                self._step = step
                self.say(self._running(step))
            case ev.ClaimEpoch(_, why):
                self.say(f"{why}; all members return to the last checkpoint")
            case ev.CheckpointMade(step):
                self._checkpoints += 1
                self._step = step
                if step != self._saved:  # a query that waits for rows saves the same step again
                    self.say(f"checkpoint at step {step:,}")
                self._saved = step
            case ev.CheckpointFailed(step, why):
                self.say(f"checkpoint at step {step:,} failed: {why}; steps continue")
            case ev.RowsLate(member, operator, rows):
                self._late[member, operator] = rows
            case ev.RowsWithoutTime(member, operator, column, rows):
                self._without_time[member, operator] = rows
                self._times[operator] = column
            case ev.StaysOpen(member, operator, begin, end):
                self._open[member, operator] = begin, end
            case ev.InputsEnded(step):
                self._step = step
                self.say(f"all inputs have ended after {step:,} {_steps(step)}")
            case _:
                pass

    @asynccontextmanager
    async def rows_of(self, run: LocalRun) -> AsyncIterator[None]:
        """Show the rows and steps of a run so far, on a terminal."""
        with RowProgress("starting", shown=self._shows_rows) as line:

            def show() -> None:
                step = run.coordinator.next_step
                line.update(run.coordinator.rows, f"{step:,} {_steps(step)} made, read")

            async def keep_shown() -> None:
                while line.is_shown:
                    show()
                    await asyncio.sleep(_SHOWN_EVERY_S)

            showing = asyncio.create_task(keep_shown())
            try:
                yield
            finally:
                await cancelled([showing])
                show()

    def scaled(self, members: int) -> None:
        """Start over with another number of members, which report their counts again."""
        self._members = members
        self._epochs = 0
        self._late.clear()
        self._without_time.clear()
        self._open.clear()

    def leave_out(self, skipped: Sequence[SkippedRows]) -> None:
        """Record and print the rows that this run or an earlier one skips."""
        self._skipped = skipped
        for text in self.skipped_rows():
            self.say(text)

    def skipped_rows(self) -> list[str]:
        """Return a sentence for each input with skipped rows."""
        return [_skipped(each) for each in self._skipped]

    def _running(self, step: int) -> str:
        where = f"from step {step:,}" if step else "from the beginning"
        return f"{self._counted()} running, {where}" if self._epochs == 1 else f"running again, {where}"

    def _counted(self) -> str:
        return f"{self._members} member{'' if self._members == 1 else 's'}"

    def late_rows(self) -> dict[str, int]:
        """Return the number of late rows since the circuit's first step, by operator."""
        return _by_operator(self._late)

    def rows_without_time(self) -> dict[str, int]:
        """Return the number of rows without a time since the circuit's first step, by window."""
        return _by_operator(self._without_time)

    def open_windows(self) -> dict[str, tuple[str, str]]:
        """Return the begin of the first and the end of the last window that stay open, by operator."""
        found: dict[str, tuple[int, int]] = {}
        for (_, operator), (begin, end) in self._open.items():
            first, last = found.get(operator, (begin, end))
            found[operator] = min(first, begin), max(last, end)
        return {key: (spelled(begin), spelled(end)) for key, (begin, end) in sorted(found.items())}

    def done(self) -> str:
        """Format the last line of a completed run, with the windows that stay open."""
        windows = ", ".join(
            f"{begin} to {end} at operator {operator}"
            for operator, (begin, end) in self.open_windows().items()
        )
        if not windows:
            return "done"
        return f"done; open windows wait for rows of a further run, or for --close: {windows}"

    def warnings(self) -> list[str]:
        """Return a sentence each for late rows and for rows without a time, if there are some."""
        found = []
        if late := self.late_rows():
            where = ", ".join(f"{rows:,} at operator {operator}" for operator, rows in late.items())
            total = sum(late.values())
            found.append(
                f"{total:,} late {rows_are(total)} missing from the result, because their windows "
                f"had closed: {where}; rows of later windows had arrived before, or a run had "
                f"closed all windows with --close"
            )
        if dropped := self.rows_without_time():
            where = ", ".join(without_time(rows, self._times[key], key) for key, rows in dropped.items())
            total = sum(dropped.values())
            found.append(
                f"{total:,} {rows_are(total)} missing from the result because they have no time: "
                f"{where}; {fill_in_times(self._times[key] for key in dropped)}, and start from "
                f"scratch with another --state"
            )
        return found

    def to_data(self) -> dict[str, Any]:
        """Return the duration and the outcome, for JSON."""
        return {
            "seconds": round(time.monotonic() - self._began, 3),
            "members": self._members,
            "steps": self._step,
            "checkpoints": self._checkpoints,
            "epochs": self._epochs,
            "late_rows": self.late_rows(),
            "rows_without_time": self.rows_without_time(),
            "open_windows": self.open_windows(),
            "skipped_rows": [each._asdict() for each in self._skipped],
        }


def _steps(number: int) -> str:
    return "step" if number == 1 else "steps"


def _skipped(left_out: SkippedRows) -> str:
    if not left_out.input:
        return (
            f"step {left_out.step:,} leaves windows open, because of --skip-step: close them by "
            f"another run with --close"
        )
    rows = "1 row" if left_out.rows == 1 else f"{left_out.rows:,} rows"
    text = (
        f"step {left_out.step:,} skips {rows} of input {left_out.input}, because of --skip-step: "
        f"see {left_out.file}"
    )
    if left_out.outputs:
        text += f"; results of these rows remain in {', '.join(left_out.outputs)}"
    return text


def _by_operator(rows: Mapping[tuple[int, str], int]) -> dict[str, int]:
    total: Counter[str] = Counter()
    for (_, operator), count in rows.items():
        total[operator] += count
    return dict(sorted(total.items()))
