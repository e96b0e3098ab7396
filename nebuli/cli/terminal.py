"""The capabilities of the terminal on standard output."""

from __future__ import annotations

import os


def takes_colours() -> bool:
    """Return whether to print colours to a terminal (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and moves_cursor()


def moves_cursor() -> bool:
    """Return whether the terminal can move its cursor."""
    return os.environ.get("TERM") != "dumb"
