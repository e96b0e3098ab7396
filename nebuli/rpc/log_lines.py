"""A line of a worker's log."""

from __future__ import annotations

import logging
from typing import NamedTuple


class LogLine(NamedTuple):
    """``time`` in microseconds since 1970 UTC; ``id`` is the worker's own id of a fragment, or empty."""

    time: int
    level: str
    id: str
    text: str

    @classmethod
    def of(cls, record: logging.LogRecord, id_: str) -> LogLine:
        """The line of what was logged, with its traceback."""
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{logging.Formatter().formatException(record.exc_info)}"
        return cls(int(record.created * 1e6), record.levelname, id_, text)
