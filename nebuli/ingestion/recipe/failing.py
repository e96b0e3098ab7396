"""Tasks that fail together: which error it was that ended the others."""

from __future__ import annotations


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    """The first error of a group, also where that is of a group in it."""
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error
