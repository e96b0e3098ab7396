"""The first of several instances that do the same: the others check if it was done, and wait for a moment."""

from __future__ import annotations

import random
from dataclasses import dataclass

_PATIENCE_S = 0.4


@dataclass(slots=True)
class Turns:
    """Work done by one need not be done by all; one that was first stays first, as long as it is.

    This only saves work: concurrent work is correct all the same.
    """

    is_first: bool = True
    patience_s: float = _PATIENCE_S

    @property
    def pause_s(self) -> float:
        """How long another one is waited for."""
        return 0.0 if self.is_first else self.patience_s * random.uniform(1.0, 2.0)  # noqa: S311 - no secret
