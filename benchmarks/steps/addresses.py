"""Addresses of this machine that nobody listens at."""

from __future__ import annotations

import socket
from contextlib import ExitStack


def free_addresses(count: int) -> list[str]:
    """So many, all different; whoever is quick may take one before it is used."""
    with ExitStack() as stack:
        taken = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [f"127.0.0.1:{each.getsockname()[1]}" for each in taken]
