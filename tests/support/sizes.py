"""How much of what is drawn at random or swept a run goes through: all of it, or a part (`make check`)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ONE_IN = int(os.environ.get("TESTS_ONE_IN", "1"))
"""Of so many examples, seeds or places one is tried."""
_FEWEST = 5


def examples(number: int) -> int:
    """How many examples to draw, of ``number``."""
    return max(min(number, _FEWEST), number // ONE_IN)


def some(all_: Sequence[T]) -> Sequence[T]:
    """Those of all seeds or places that are tried: evenly spread, the first among them."""
    return all_[::ONE_IN]
