"""Free ports of this machine."""

from __future__ import annotations

import itertools
import os
import random
import socket
from collections.abc import Iterator

_EACH = 1_500
"""Ports that one of those who run tests side by side has for itself: between a look and the use, nobody takes them."""


def _drawn() -> Iterator[int]:
    """One after the other: what was given once comes back only when all were given."""
    first = 20_000 + _EACH * (int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")) % 8)
    ports = random.SystemRandom().sample(range(first, first + _EACH), _EACH)
    return itertools.cycle(ports)


_PORTS = _drawn()


def free_addresses(count: int) -> list[str]:
    """Addresses that nobody listens at now, and that nobody else in this process was given lately.

    Below the range from which outgoing connections take theirs, so that none of these comes in between.
    """
    found: list[str] = []
    for port in itertools.islice(_PORTS, _EACH):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports")
