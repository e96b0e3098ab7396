"""Free ports of this machine."""

from __future__ import annotations

import itertools
import random
import socket
from collections.abc import Iterator
from contextlib import suppress

_FIRST, _EACH, _BLOCKS = 20_000, 400, 30
"""Below the range from which outgoing connections take theirs, so that none of these comes in between."""

_HELD: list[socket.socket] = []
"""The name of this process' block, which the system gives back however the process ends."""


def _own_block() -> int:
    """The first port of a block that nobody else who runs tests has: between a look and the use, nobody takes it."""
    for block in range(_BLOCKS):
        name = socket.socket(socket.AF_UNIX)
        with suppress(OSError):
            name.bind(f"\0netchannel-test-ports-{block}")
            _HELD.append(name)
            return _FIRST + block * _EACH
        name.close()
    raise AssertionError(f"{_BLOCKS} processes run tests here already, and each has {_EACH} ports for itself")


def _drawn(first: int) -> Iterator[int]:
    """One after the other: what was given once comes back only when all were given."""
    yield from itertools.cycle(random.SystemRandom().sample(range(first, first + _EACH), _EACH))


_PORTS = _drawn(_own_block())  # at once: a test that counts sockets is not to meet the first use


def free_addresses(count: int) -> list[str]:
    """Addresses that nobody listens at now, and that nobody else in this process was given lately."""
    found: list[str] = []
    for port in itertools.islice(_PORTS, _EACH):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0:
                found.append(f"127.0.0.1:{port}")
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports")
