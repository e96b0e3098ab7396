"""Processes as whoever started them sees them: what they write, line by line, and what killed them."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import AsyncIterator

__all__ = ["lines", "signal_name"]

_TOO_LONG = "(a line, or a part of one, that is too long to be shown)"


async def lines(reader: asyncio.StreamReader) -> AsyncIterator[str]:
    """Each without its end, to the last. One above the limit of ``reader`` is passed over, and told of."""
    while True:
        try:
            data = await reader.readline()
        except ValueError:  # what was read of it is gone; whoever reads no more would hold the process up
            yield _TOO_LONG
            continue
        if not data:
            return
        yield data.decode(errors="replace").rstrip()


def signal_name(number: int) -> str:
    """What people call a signal."""
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal, most of which have no name
        return f"signal {number}"
