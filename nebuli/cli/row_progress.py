"""A line on a terminal that shows how many rows long work has read so far."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Self

from nebuli.cli.terminal import moves_cursor
from nebuli.log_output import is_quiet

if TYPE_CHECKING:
    from types import TracebackType

    from rich.progress import Progress, Task, TaskID
    from rich.text import Text


class RowProgress:
    """A context manager with the line: what is done, a bar if the ``total`` is known, rows, rows a second, and time.

    It is on standard error, and gone at the end. In a pipe, in a dumb terminal and with ``--quiet`` there is none.
    ``shown``: false if something else writes to the terminal meanwhile.
    """

    def __init__(self, text: str, total: int | None = None, *, shown: bool = True) -> None:
        self._text = text
        self._total = total
        self.is_shown = shown and sys.stderr.isatty() and moves_cursor() and not is_quiet()
        self._line: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        if self.is_shown:
            from rich.console import Console
            from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, TextColumn

            class Rows(ProgressColumn):
                def render(self, task: Task) -> Text:
                    return _rows(task)

            bar = [] if self._total is None else [BarColumn()]
            columns = (SpinnerColumn(), TextColumn("{task.description}", markup=False), *bar, Rows())
            progress = Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False)
            progress.start()
            self._line = progress, progress.add_task(self._text, total=self._total)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line[0].stop()
            self._line = None

    def update(self, rows: int, text: str | None = None) -> None:
        """Show a number of rows, and another text if one is given."""
        if self._line is not None:
            progress, task = self._line
            progress.update(task, completed=rows, description=text)


def _rows(task: Task) -> Text:
    from rich.text import Text

    rows = int(task.completed)
    of = "" if task.total is None else f" of {int(task.total):,}"
    speed = "" if task.speed is None else f", {task.speed:,.0f} rows/s"
    return Text(f"{rows:,}{of} rows{speed}, {task.elapsed or 0:.0f} s")
