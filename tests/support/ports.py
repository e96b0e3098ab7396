"""Free ports of this machine."""

from __future__ import annotations

import random
import socket


def free_addresses(count: int) -> list[str]:
    """Addresses that nobody listens at now.

    Below the range from which outgoing connections take theirs, so that none of these comes in between.
    """
    found: list[str] = []
    for port in random.SystemRandom().sample(range(20_000, 32_000), 1000):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports")
