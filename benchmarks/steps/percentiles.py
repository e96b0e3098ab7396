"""Times of many steps as a few figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def percentiles(seconds: Sequence[float], prefix: str = "") -> dict[str, float]:
    """The 50th and the 99th in milliseconds, by the names of measures."""
    p50, p99 = np.percentile(seconds, (50, 99)) * 1e3
    return {f"{prefix}p50_ms": float(p50), f"{prefix}p99_ms": float(p99)}
