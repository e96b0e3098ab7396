"""Seeds that are drawn anew in each run, and given again where a run is to be repeated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from random import SystemRandom

_NAME = "TESTS_SEED"


@contextmanager
def drawn_seed() -> Iterator[int]:
    """A seed, which is that of TESTS_SEED if there is one; whatever fails within it says how it is run again."""
    given = os.environ.get(_NAME)
    seed = SystemRandom().randrange(1 << 32) if given is None else int(given)
    try:
        yield seed
    except BaseException as error:
        error.add_note(f"this was seed {seed}: {_NAME}={seed} runs it again")
        raise
