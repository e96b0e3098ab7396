"""Spark's message about a failure, as a sentence."""

from __future__ import annotations

import re

_CONDITION = re.compile(r"\[([A-Z][A-Z0-9_]+(?:\.[A-Z0-9_]+)*)\] ?([^\n]*)")
_WRAPPERS = frozenset({"WRITING_JOB_ABORTED", "TASK_WRITE_FAILED", "STREAM_FAILED", "FAILED_EXECUTE_UDF"})
"""Conditions that report a failure without its cause."""


def sentence(error: Exception) -> str:
    """The innermost of Spark's conditions with its message, or the first line of what was raised."""
    text = str(error)
    for name, message in _CONDITION.findall(text):
        if name not in _WRAPPERS:
            return f"[{name}] {message.strip()}"
    lines = [line for line in text.splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"
