"""What travels between hosts: message ``number`` of a stream, known by its number, in the size that is asked for."""

from __future__ import annotations

import random

from netchannel import Timing

TIMING = Timing(heartbeat_s=0.2, dead_after_s=1.0, backoff_limit_s=0.2)
_BLOB = random.Random(0).randbytes(1 << 18)


def body(number: int, size: int) -> bytes:
    """``size`` bytes (64 KiB at most) that no other message has."""
    start = number * 7919 % (len(_BLOB) >> 1)
    return number.to_bytes(8, "little") + _BLOB[start : start + size - 8]
