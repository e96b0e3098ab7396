"""The recent log of a worker, by fragment, for clients over gRPC."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import TYPE_CHECKING

from nebuli.connectors.errors import short
from nebuli.rpc.log_lines import LogLine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

__all__ = ["Logs"]

KEPT = 10_000
"""Lines that are kept; older ones are on the worker's standard error only."""
_LONGEST_TEXT = 16 << 10
"""The longest text of a line, in characters; gRPC takes no message above 4 MiB."""


class Logs(logging.Handler):
    """Keeps what the worker logs, and what the processes of its fragments do.

    ``owner`` finds the fragment that a line of the worker's own is about, by its text: it names a channel.
    """

    def __init__(self, owner: Callable[[str], str]) -> None:
        super().__init__(logging.INFO)
        self._owner = owner
        self._lines: deque[LogLine] = deque(maxlen=KEPT)
        self._count = 0  # of all lines that there ever were
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line; called on any thread."""
        line = LogLine.of(record, getattr(record, "fragment_id", ""))
        line = line._replace(id=line.id or self._owner(line.text))
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self.keep, line)

    def keep(self, line: LogLine) -> None:
        """Keep a line, or its beginning; on the loop."""
        self._lines.append(line._replace(text=short(line.text, _LONGEST_TEXT)))
        self._count += 1
        self._news.set()

    async def lines(self, id_: str = "", *, follow: bool = False) -> AsyncIterator[LogLine]:
        """Yield the kept lines, of one fragment or of all, and with ``follow`` later ones, until it is closed."""
        seen = self._count - len(self._lines)
        while True:
            self._news.clear()
            end = self._count
            new = min(end - seen, len(self._lines))
            for line in list(self._lines)[len(self._lines) - new :]:
                if id_ in ("", line.id):
                    yield line
            seen = end
            if new:
                continue
            if not follow:
                return
            await self._news.wait()
