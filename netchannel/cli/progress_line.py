"""A line on a terminal that shows how far a command is."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from types import TracebackType

_INTERVAL_S = 0.1
_ERASE = "\r\x1b[K"


class ProgressLine:
    """A context manager with a line on standard error, gone at the end; none in a pipe or in a dumb terminal."""

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = -_INTERVAL_S

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write("")

    def show(self, text: str) -> None:
        """Show another text, unless the last one is newer than a tenth of a second."""
        now = time.monotonic()
        if now - self._last >= _INTERVAL_S:
            self._last = now
            self._write(text)

    def _write(self, text: str) -> None:
        if self._is_shown:
            sys.stderr.write(f"{_ERASE}{text}")
            sys.stderr.flush()
