"""How processes of this package log on standard error. Processes that they start log in the same way."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime

PACKAGES = ("nebuli", "netchannel")
"""The packages whose lines are shown from the level on that was chosen; of others, warnings."""
FORMAT_VARIABLE = "NEBULI_LOG_FORMAT"
LEVEL_VARIABLE = "NEBULI_LOG_LEVEL"
FORMATS = ("text", "json")
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_DEFAULT = "warning"


class _JsonLines(logging.Formatter):
    """An object in a line for each record: its time (UTC), level, logger, process and message, and its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        said = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        if record.exc_info:
            said["traceback"] = self.formatException(record.exc_info)
        return json.dumps(said, ensure_ascii=False)


def wrong_setting() -> str | None:
    """A sentence about a variable of the environment whose value has no meaning; None if there is none."""
    for variable, values in ((LEVEL_VARIABLE, (*LEVELS,)), (FORMAT_VARIABLE, FORMATS)):
        value = os.environ.get(variable, "")
        if value and value not in values:
            return f"{variable} is {value!r}: expected {', '.join(values[:-1])} or {values[-1]}"
    return None


def is_quiet() -> bool:
    """True if only errors are shown, and no progress."""
    return _level() == logging.ERROR


def stderr_handler(text_format: str = "%(message)s") -> logging.Handler:
    """A handler of standard error, at the level and in the form that were chosen; ``text_format`` is that of text."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setLevel(_level())
    as_json = os.environ.get(FORMAT_VARIABLE) == "json"
    handler.setFormatter(_JsonLines() if as_json else logging.Formatter(text_format))
    return handler


def log_to_stderr(text_format: str = "%(message)s") -> None:
    """Have this process log by `stderr_handler`, as long as it lives."""
    handler = stderr_handler(text_format)
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(handler.level)


def _level() -> int:
    return LEVELS.get(os.environ.get(LEVEL_VARIABLE, ""), LEVELS[_DEFAULT])
