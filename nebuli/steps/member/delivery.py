"""`Delivery`: from the output log of a member into the sink of an output, each step once and in order.

`Deliveries` has those of the process that is where sinks are: workers' members deliver at their nodes, and a command
that has its members on this machine or in Spark delivers itself.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.connectors.endpoints import DatedOutput, Resumable
from nebuli.connectors.errors import FragmentError, OutputForgotten, OutputGone, RowsUnfit
from nebuli.connectors.provider import output_of, sink_over
from nebuli.connectors.sinks.outputs import Nothing
from nebuli.dataflow import DataflowError
from nebuli.dataflow.zset import weights_of
from nebuli.steps.logs.output_log import SinkPosition
from nebuli.store.errors import BeyondEnd, StorageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import pyarrow as pa

    from nebuli.steps.logs.output_log import NetRows, OutputLog, SinkPositions
    from nebuli.store.shards.shard import Span
    from topology import SinkConnector

_log = logging.getLogger("nebuli.steps.member")
FOLLOWED = "its query continues with other members"
"""Why sinks are left without their results."""
_LEAVE_S = 1.0
"""How long a sink whose reader is slow holds up a member that is to stop."""


class Delivery:
    """Delivers an output into a sink that is opened once it is known where the members continue (`open_now`).

    Until then its existing contents are left as they are: without a checkpoint that all members have, nothing
    continues.

    A sink that can resume (`Resumable`, in the modes ``append`` and ``changes``) continues at its last durable
    position; the log keeps the rows above that. In mode ``final`` it is written as a whole, from the sum of the steps,
    which is kept instead of them once a row was retracted: until then it would not be smaller. Any other is written
    from the first step on, and has the log keep all steps. One that is `DatedOutput` has the rows of a step at its
    time, and can continue after steps that have one. The sink's result counts when `finish` has returned; `abort`
    leaves none. If more rows follow a result that counts, as stopped members continue, a sink is opened again, for the
    next result.
    """

    def __init__(self, output: str, target: SinkConnector) -> None:
        self._output = output
        self._target = target
        self._kind = f"{target.type} in mode {target.mode}"
        self.rows = 0
        """How many rows the sink has written since the query's first step, over all processes; those of a repeated
        step once. In mode ``final``, and for a sink that is written from scratch: those of the result that it writes
        now."""
        self._made()
        self._log: OutputLog
        self._schema: pa.Schema
        self._delivered: SinkPositions
        self._net: NetRows | None = None
        self._takes_back = False
        self._written = 0
        self._whole = 0, 0  # below which step all is what the sink can keep, and how many rows that is
        self._kept = 0
        self._is_between = False  # no write has begun that has not ended
        self._published: int | None = None  # below which step
        self._turn = asyncio.Lock()
        self._may_open = asyncio.Event()
        self._has_opened = False
        self._reached = asyncio.Event()
        self._due = asyncio.Event()
        self._working: asyncio.Task[None] | None = None

    def _made(self) -> None:
        output = output_of(self._target)
        # Rows without a sink need not be added up, nor be kept until the end.
        mode = "changes" if isinstance(output, Nothing) else self._target.mode
        self._sink = sink_over(output, mode)
        self._is_final = mode == "final"
        self._resumable = output if not self._is_final and isinstance(output, Resumable) else None
        self._dated = output if not self._is_final and isinstance(output, DatedOutput) else None
        if self._dated is not None:
            self._dated.give_times()

    # -- its beginning

    async def begin(self, log: OutputLog, schema: pa.Schema) -> None:
        """Follow the log, once the sink may be opened. Raises StorageError."""
        self._log, self._schema = log, schema
        self._published = None
        self._has_opened = self._is_between = False
        self._written = self._kept = 0
        self._delivered = await log.delivered(self._output)
        # A sink that has lost what it had may need it, and members trim before it is open.
        await log.keep_all(self._output)
        self._working = asyncio.create_task(self._work())

    def open_now(self) -> None:
        """Have the sink opened: all members continue from the same checkpoint."""
        self._may_open.set()

    async def _open(self, schema: pa.Schema) -> int:
        """Open the sink; returns the step with which it continues. Raises OutputError, StorageError."""
        first = self._log.first_of(self._output)
        self.rows = 0
        if self._is_final:
            return await self._open_net(schema, first)
        position = await self._delivered.last() if self._resumable is not None else None
        if self._resumable is None or position is None or position.kind != self._kind:
            if first:
                raise OutputForgotten(self._output, self._kind, first)
            await asyncio.to_thread(self._sink.open, schema)
            await self._keep_beginning()
            return 0
        if position.step > self._log.last:
            raise BeyondEnd(
                f"the sink of {self._output}", position.step, f"output log {self._log.name}", self._log.last
            )
        self._resumable.resume(position.text)
        start, self.rows = position.step, position.rows
        try:
            await asyncio.to_thread(self._sink.open, schema)
        except OutputGone as gone:
            await asyncio.to_thread(self._sink.abort, str(gone))
            if first:
                raise OutputGone(
                    f"{gone}; it was the only copy of the output of the steps below {position.step:,}, because "
                    f"the state no longer keeps this output (see --keep-output): put it back unchanged, or start "
                    f"again with another state folder"
                ) from gone
            _log.warning("%s: it is written from scratch, because all steps are kept", gone)
            start = self.rows = 0
            self._made()
            await asyncio.to_thread(self._sink.open, schema)
            await self._keep_beginning()
        return start

    async def _keep_beginning(self) -> None:
        """Before the first rows: a process that is killed after them resumes as their writer."""
        if self._resumable is not None:
            text = await asyncio.to_thread(self._resumable.sync)
            await self._delivered.keep(SinkPosition(0, self._kind, text, self.rows))

    async def _open_net(self, schema: pa.Schema, first: int) -> int:
        """Do the same in mode ``final``: after the sum."""
        net = self._net = await self._log.net(self._output)
        if first > net.step:
            raise OutputForgotten(self._output, self._kind, first)
        await asyncio.to_thread(self._sink.open, schema)
        for rows in await net.rows():
            await asyncio.to_thread(self._sink.write, rows)
        self._takes_back = net.step > 0
        return net.step

    # -- while it runs

    async def _work(self) -> None:
        await self._may_open.wait()
        async with self._turn:  # giving it up waits until it is open, as for a write
            self._has_opened = True  # or has tried to
            start = await self._open(self._schema)
            await self._log.has_delivered(self._output, start)
            self._written = self._kept = start
            self._whole = start, self.rows
            self._is_between = True
        self._reached.set()
        tasks = [asyncio.create_task(each) for each in (self._follow(start), self._keep_whenever_due())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for each in done:
                each.result()
        finally:
            for each in tasks:
                each.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _follow(self, start: int) -> None:
        async for span in self._log.follow(self._output, start):
            async with self._turn:
                self._is_between = False
                if self._dated is not None and self._dated.is_dated:
                    await self._write_at_times(self._dated, span)
                else:
                    for _, rows in span.updates:
                        await self._write(rows)
                    self._whole = span.upper, self.rows
                self._written = span.upper
                self._is_between = True
            self._reached.set()

    async def _write(self, rows: pa.RecordBatch) -> None:
        if rows.num_rows:
            self._takes_back |= bool((weights_of(rows) < 0).any())
            with self._naming_output():
                self.rows += await asyncio.to_thread(self._sink.write, rows)

    @contextmanager
    def _naming_output(self) -> Iterator[None]:
        """Name the output of rows that do not fit. Raises RowsUnfit."""
        try:
            yield
        except RowsUnfit as error:
            raise RowsUnfit(f"output {self._output}: {error}") from error
        except DataflowError as error:
            raise RowsUnfit(
                f"output {self._output} ({self._kind}) cannot be written: {error.what}. The state "
                f"is kept: run the query again with --serve, and push the missing rows, or "
                f"retract surplus rows"
            ) from error

    async def _write_at_times(self, dated: DatedOutput, span: Span) -> None:
        """The rows of a step that has no time of its own are of the next one that has."""
        times = await self._log.times(span.lower, span.upper)
        rows: dict[int, list[pa.RecordBatch]] = {}
        for step, some in span.updates:
            rows.setdefault(step, []).append(some)
        for step in sorted(rows.keys() | times.keys()):
            for some in rows.get(step, ()):
                await self._write(some)
            if step in times:
                dated.at(times[step])
                self._whole = step + 1, self.rows
        if times and self._resumable is not None:
            await asyncio.to_thread(self._resumable.sync)  # its reader waits for that

    async def _keep_whenever_due(self) -> None:
        while True:
            await self._due.wait()
            self._due.clear()
            async with self._turn:
                await self._keep()

    async def _keep(self) -> None:
        """Have the sink keep what was written, for good; then the position, and then let go of the steps below."""
        if self._whole[0] == self._kept:
            return
        if self._resumable is not None:
            await self._record(await asyncio.to_thread(self._resumable.sync))
        elif self._net is not None and self._takes_back:
            step = self._written
            await self._log.add_up(self._output, self._net, step)
            await self._log.has_delivered(self._output, step)
            self._kept = step

    async def _record(self, position: str) -> None:
        step, rows = self._whole
        await self._delivered.keep(SinkPosition(step, self._kind, position, rows))
        await self._log.has_delivered(self._output, step)
        self._kept = step

    def keep_soon(self) -> None:
        """Have the sink keep the rows written so far durably: a later run continues after them."""
        self._due.set()

    async def failed(self) -> None:
        """Wait for what goes wrong, forever if nothing does: raises OutputError, StorageError."""
        assert self._working is not None
        await asyncio.wait([self._working])
        if not self._working.cancelled():
            self._working.result()
        await asyncio.Event().wait()

    # -- its end

    async def finish(self, step: int) -> None:
        """Publish all that is below a step. Raises OutputError, StorageError."""
        if self._published == step:
            return
        self.open_now()
        if self._published is not None:
            self._made()
            await self.begin(self._log, self._schema)
        await self._reach(step)
        async with self._turn:  # a position that is being kept is kept before it is stopped
            await self._stop()
        position = None if self._resumable is None else await asyncio.to_thread(self._resumable.sync)
        with self._naming_output():
            for rows in await self._log.open_rows(self._output, step) if self._is_final else ():
                self.rows += await asyncio.to_thread(self._sink.write, rows)
            self.rows += await asyncio.to_thread(self._sink.finish)
        self._published = step
        if position is not None:
            await self._record(position)
        else:
            await self._keep()

    async def leave(self, step: int) -> None:
        """Have the sink keep all that is below a step, if it can within a moment: a later run continues there."""
        if self._published is not None:
            return
        try:
            async with asyncio.timeout(_LEAVE_S):
                await self._reach(step)
                async with self._turn:
                    await self._keep()
        except (FragmentError, StorageError, OSError) as error:  # also what is too late
            self._say_not_kept(error)

    async def _reach(self, step: int) -> None:
        assert self._working is not None
        while self._written < step:
            self._reached.clear()
            reached = asyncio.create_task(self._reached.wait())
            try:
                await asyncio.wait([reached, self._working], return_when=asyncio.FIRST_COMPLETED)
            finally:
                reached.cancel()
            if self._working.done():
                self._working.result()

    async def abort(self, reason: str) -> None:
        """Publish nothing, but keep what was written, where the sink can; harmless after `finish`."""
        has_failed = self._working is None or self._working.done()
        await self._stop_between()
        if self._published is not None or not self._has_opened:
            return
        if not has_failed and self._is_between:
            await self._keep_at_the_end()
        await asyncio.to_thread(self._sink.abort, reason)

    async def _stop_between(self) -> None:
        """Stop when no write is under way, if that ends within a moment: the position is after its rows."""
        has_turn = False
        with suppress(TimeoutError):
            async with asyncio.timeout(_LEAVE_S):
                has_turn = await self._turn.acquire()
        try:
            await self._stop()
        finally:
            if has_turn:
                self._turn.release()

    async def _keep_at_the_end(self) -> None:
        """Do not wait for its reader: it may have to be written again."""
        self._sink.interrupt()
        try:
            await self._keep()
        except (FragmentError, StorageError, OSError) as error:
            self._say_not_kept(error)

    def _say_not_kept(self, error: Exception) -> None:
        _log.info("the next run writes the last rows of output %s again: %s", self._output, error)

    async def _stop(self) -> None:
        if self._working is not None:
            self._working.cancel()
            with suppress(asyncio.CancelledError):
                await asyncio.wait([self._working])


class Deliveries:
    """Delivers to the ``targets``, by output, what ``logs`` have of these outputs.

    Abandoned deliveries resume when members continue, or a new epoch begins: the process that requested this may be
    gone, and other members may have taken over or not. No coordinator greets members that others have followed.
    """

    def __init__(self, logs: Mapping[str, OutputLog], targets: Mapping[str, SinkConnector]) -> None:
        self._logs = logs
        self._targets = targets
        self._deliveries: list[Delivery] = []
        self._turn = asyncio.Lock()
        self._given_up = False
        self._reopening: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def rows(self) -> int:
        """Number of rows that they have given out."""
        return sum(each.rows for each in self._deliveries)

    async def begin(self) -> None:
        """Follow the logs, once the sinks may be opened. Raises StorageError."""
        made = []
        for output, target in self._targets.items():
            delivery, log = Delivery(output, target), self._logs[output]
            await delivery.begin(log, log.schemas[output])
            made.append(delivery)
        self._deliveries = made
        self._changed.set()

    def open_now(self) -> None:
        """All members continue from the same checkpoint."""
        if self._given_up:
            self._reopening = asyncio.create_task(self.take_back())
            self._changed.set()
            return
        for delivery in self._deliveries:
            delivery.open_now()

    def keep_soon(self) -> None:
        """Have them keep what was written by now, for good."""
        for delivery in self._deliveries:
            delivery.keep_soon()

    async def failed(self) -> None:
        """Wait for what goes wrong, forever if nothing does: raises OutputError, StorageError."""
        while True:
            self._changed.clear()
            waits = [self._changed.wait(), *(each.failed() for each in self._deliveries)]
            if self._reopening is not None:
                waits.append(_failure(self._reopening))
            tasks = [asyncio.ensure_future(each) for each in waits]
            try:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for each in done:
                    each.result()
            finally:
                await cancelled(tasks)

    async def finish(self, step: int) -> None:
        """Publish all that is below a step. Raises OutputError, StorageError."""
        async with self._turn:
            for delivery in self._deliveries:
                await delivery.finish(step)

    async def leave(self, step: int) -> None:
        """Have them keep all that is below a step, as far as they can within a moment."""
        async with self._turn:
            for delivery in self._deliveries:
                await delivery.leave(step)

    async def abort(self, reason: str) -> None:
        """End without publishing what was not; sinks keep what they can, for ``reason``."""
        if self._reopening is not None:
            await cancelled([self._reopening])
        for delivery in self._deliveries:
            await delivery.abort(reason)

    async def give_up(self, step: int) -> None:
        """Let others write to them from now on, after what they have had."""
        async with self._turn:
            self._given_up = True
            for delivery in self._deliveries:
                await delivery.leave(step)
                await delivery.abort(FOLLOWED)

    async def take_back(self) -> None:
        """Deliver again, as no others do. Raises StorageError."""
        async with self._turn:
            if not self._given_up:
                return
            for delivery in self._deliveries:  # not all, if giving up was interrupted
                await delivery.abort(FOLLOWED)
            await self.begin()
            for delivery in self._deliveries:
                delivery.open_now()
            self._given_up = False


async def _failure(task: asyncio.Task[None]) -> None:
    await asyncio.wait([task])
    if not task.cancelled():
        task.result()
    await asyncio.Event().wait()
