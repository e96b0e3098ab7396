"""What the terminal of standard output may be sent besides text."""

from __future__ import annotations

import os


def takes_colours() -> bool:
    """Whether colours are wanted where output goes to a terminal (https://no-color.org)."""
    return not os.environ.get("NO_COLOR") and moves_cursor()


def moves_cursor() -> bool:
    """Whether the terminal knows more than lines of text."""
    return os.environ.get("TERM") != "dumb"
