"""Keys by Zipf's law: the hottest is asked for the most often, the next less, and the hot ones lie anywhere."""

from __future__ import annotations

import numpy as np

from .graphs import Numbers


def drawn(keys: int, count: int, exponent: float, seed: int) -> Numbers:
    """So many of the keys below ``keys``, the same ones for the same seed."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    upto, drawing = np.cumsum(weights) / weights.sum(), np.random.default_rng(seed)
    by_rank = np.argsort(rank(keys))
    return by_rank[np.searchsorted(upto, drawing.random(count))]


def rank(keys: int) -> Numbers:
    """How many keys are asked for more often than each."""
    return np.random.default_rng(5).permutation(keys)
