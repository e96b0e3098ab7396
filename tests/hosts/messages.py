"""What travels between hosts: message ``number`` of a stream, known by its number, in the size that is asked for."""

from __future__ import annotations

import os
import random

from netchannel import Timing

DEAD_AFTER = "TEST_DEAD_AFTER_S"
"""The environment of an actor says by this how long its servers wait for a word, where it is not a second."""
TIMING = Timing(heartbeat_s=0.2, dead_after_s=float(os.environ.get(DEAD_AFTER, "1.0")), backoff_limit_s=0.2)
_BLOB = random.Random(0).randbytes(1 << 18)


def body(number: int, size: int) -> bytes:
    """``size`` bytes (64 KiB at most) that no other message has."""
    start = number * 7919 % (len(_BLOB) >> 1)
    return number.to_bytes(8, "little") + _BLOB[start : start + size - 8]
