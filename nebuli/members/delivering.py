"""Delivering: the output log of a member into the sink of an output, each step once and in order."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.connectors.provider import sink_of

if TYPE_CHECKING:
    import pyarrow as pa

    from nebuli.connectors.endpoints import Sink
    from nebuli.storage.logs.output_log import OutputLog
    from topology import SinkConnector


class Delivery:
    """What an output has, from its first step on, into a sink that is opened at once and written from the beginning.

    All steps are written that are in the log; they stay the same, whatever happens to the members. The sink's result
    counts when `finish` has returned; `abort` leaves none. Where more comes behind a result that counts, as members go
    on that had stopped, a sink is opened again, for the next result.
    """

    def __init__(self, output: str, target: SinkConnector) -> None:
        self._output = output
        self._target = target
        self.rows = 0
        """How many rows the sink has given out."""
        self._sink: Sink = sink_of(target)
        self._written = 0
        self._published: int | None = None  # below which step
        self._from: tuple[OutputLog, pa.Schema] | None = None
        self._reached = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def begin(self, log: OutputLog, schema: pa.Schema) -> None:
        """Open the sink, and follow the log. Raises OutputError."""
        self._from = log, schema
        self._published, self.rows = None, 0
        await asyncio.to_thread(self._sink.open, schema)
        self._written = log.first
        self._following = asyncio.create_task(self._follow(log))

    async def _follow(self, log: OutputLog) -> None:
        async for span in log.follow(self._output, log.first):
            for _, rows in span.updates:
                if rows.num_rows:
                    self.rows += await asyncio.to_thread(self._sink.write, rows)
            self._written = span.upper
            self._reached.set()

    async def failed(self) -> None:
        """Wait for what goes wrong, for ever if nothing does: raises OutputError, StorageError."""
        assert self._following is not None
        await asyncio.wait([self._following])
        if not self._following.cancelled():
            self._following.result()
        await asyncio.Event().wait()

    async def finish(self, step: int) -> None:
        """Publish all that is below a step. Raises OutputError, StorageError."""
        if self._published == step:
            return
        if self._published is not None:
            await self._begin_again()
        assert self._following is not None
        while self._written < step:
            self._reached.clear()
            reached = asyncio.create_task(self._reached.wait())
            try:
                await asyncio.wait([reached, self._following], return_when=asyncio.FIRST_COMPLETED)
            finally:
                reached.cancel()
            if self._following.done():
                self._following.result()
        await self._stop()
        self.rows += await asyncio.to_thread(self._sink.finish)
        self._published = step

    async def _begin_again(self) -> None:
        assert self._from is not None
        self._sink = sink_of(self._target)
        await self.begin(*self._from)

    async def abort(self, reason: str) -> None:
        """Publish nothing; harmless after `finish`."""
        await self._stop()
        if self._published is None:
            await asyncio.to_thread(self._sink.abort, reason)

    async def _stop(self) -> None:
        if self._following is not None:
            self._following.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._following])
