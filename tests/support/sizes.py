"""How much of what is drawn at random or swept a run goes through: all of it, or a part.

Whatever runs pytest itself goes through all of it. `make test` draws fewer examples and seeds, and `make check` sweeps
fewer places, too.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")

ONE_IN = int(os.environ.get("TESTS_ONE_IN", "1"))
"""Of so many examples, seeds or places one is tried."""
_DRAWN_ONE_IN = max(ONE_IN, int(os.environ.get("TESTS_DRAWN_ONE_IN", "1")))
"""Of so many examples or seeds; another one gives as good a run, which is not so of places."""
_FEWEST = 5


def examples(number: int) -> int:
    """How many examples to draw, of ``number``."""
    return max(min(number, _FEWEST), number // _DRAWN_ONE_IN)


def in_full(number: int) -> int:
    """How many examples to draw, of ``number``; all of them wherever all places are tried."""
    return max(min(number, _FEWEST), number // ONE_IN)


def seeds(all_: Sequence[T]) -> Sequence[T]:
    """Those of all seeds, or of what is as good as them, that are tried: evenly spread, the first among them."""
    return all_[::_DRAWN_ONE_IN]


def some(all_: Sequence[T]) -> Sequence[T]:
    """Those of all places that are tried, or of seeds none of which is left out: evenly spread, with the first."""
    return all_[::ONE_IN]
