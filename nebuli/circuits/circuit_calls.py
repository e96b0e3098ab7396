"""`CircuitCalls`: the requests to a running circuit, for any transport: gRPC, or HTTP."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

from nebuli.circuits.arrow_bytes import zset_of
from nebuli.circuits.consistent_query import WITHIN_S, Queries
from nebuli.circuits.errors import (
    CheckpointNotMade,
    CircuitFailed,
    CircuitShutDown,
    InputFull,
    NotScaled,
    SequenceGap,
    SequencePassed,
    SequenceReused,
    StagedLost,
    StepForgotten,
    StepNotThere,
    UnknownInput,
    UnknownOutput,
    WrongRows,
)
from nebuli.dataflow import DataflowError, SteppedCircuit
from nebuli.dataflow.steps.trial import Trial
from nebuli.limits import MOST_MEMBERS
from nebuli.steps.errors import NotScaled as Unscaled
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.protocol.errors import CheckpointNotMade as GivenUp
from nebuli.steps.protocol.lockstep import Phase
from nebuli.store.errors import SinceMismatch, StepOutOfRange, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence

    import pyarrow as pa

    from nebuli.steps.coordinator.call_connection import CallConnection
    from nebuli.steps.coordinator.circuit_run import AnyRun
    from nebuli.steps.coordinator.coordinator import Coordinator
    from nebuli.store import Span

_LOOK_S = 0.05
_NEXT_S = 60.0
"""How long a producer waits for its number, while members change."""


class CircuitCalls:
    """Answers on the loop of a circuit's coordinator. Every method raises CircuitError, and nothing else of ours."""

    def __init__(self, run: AnyRun) -> None:
        self.run = run
        circuit = SteppedCircuit(run.plan, 0)
        self.inputs: Mapping[str, pa.Schema] = circuit.inputs
        """Z-sets of this schema come in."""
        self.outputs: Mapping[str, pa.Schema] = circuit.outputs
        """And these go out."""
        self.tables: Mapping[str, pa.Schema] = circuit.tables
        """The tables that queries can read."""
        self.external = frozenset(run.external)
        """The inputs that are pushed into."""
        self._failure: str | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self._trial = Trial(run.plan)
        self._queries = Queries(run, self.tables)
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        run.on_failure.append(self.fail)

    def end(self, step: int) -> None:
        """The run is over: there is nothing in any output from this step on."""
        self._over.set_result(step)

    def fail(self, why: str) -> None:
        """The run cannot continue: each call, also one that waits, raises CircuitFailed with the reason."""
        self._failure = why
        if not self._over.done():
            self._over.set_exception(self._failed(why))
            self._over.exception()  # perhaps no call waits for it
        for task in self._tasks:
            task.cancel()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Have the task be one that `fail` ends. Raises CircuitFailed."""
        task = asyncio.current_task()
        assert task is not None, "calls are answered by tasks"
        self._check_failed()
        self._tasks.add(task)
        try:
            yield
        except asyncio.CancelledError:
            if self._failure is not None:
                task.uncancel()
            self._check_failed()
            raise
        finally:
            self._tasks.discard(task)

    def _check_failed(self) -> None:
        if self._failure is not None:
            raise self._failed(self._failure)

    @staticmethod
    def _failed(why: str) -> CircuitFailed:
        return CircuitFailed(f"the circuit has failed: {why}")

    async def close(self) -> None:
        """Let go of what queries need."""
        await self._queries.close()

    # -- rows in

    def pushed(self, handle: str) -> str:
        """An input that can be pushed into."""
        if handle in self.external:
            return handle
        if handle in self.inputs:
            raise UnknownInput(
                f"the rows of input {handle} come from the topology's sources: push into an input "
                f"without a source"
            )
        raise UnknownInput(f"there is no input {handle}: the circuit has {', '.join(self.inputs)}")

    async def push(
        self, handle: str, producer: str, sequence: int, batch: pa.RecordBatch, within_s: float
    ) -> int:
        """Log rows: the step that they came before."""
        with as_circuit_errors():
            rows = self._rows_of(handle, batch)
            data = bytes(rows.serialize())
            async with self._line(handle, producer, within_s) as line:
                self._check_open()
                answer = await line.push(handle, producer, sequence, data, within_s)
            return _step_of(answer, handle, producer, sequence)

    async def stage(
        self, handle: str, producer: str, sequence: int, batch: pa.RecordBatch, within_s: float
    ) -> str:
        """Keep rows for a push: the piece's name; an empty one if the number, or a later one, was pushed before."""
        with as_circuit_errors():
            rows = self._rows_of(handle, batch)
            data = bytes(rows.serialize())
            async with self._line(handle, producer, within_s) as line:
                answer = await line.stage(handle, producer, sequence, data)
            match answer:
                case ask.Staged(piece):
                    return piece
                case ask.Passed():
                    return ""
                case ask.Crowded(there, most):
                    raise InputFull(
                        f"{there} bytes are staged at the member already, and the limit is "
                        f"{most}: push or drop these rows; rows that are never pushed are deleted "
                        f"after some hours"
                    )
            return str(_step_of(answer, handle, producer, sequence))

    async def push_staged(
        self, handle: str, producer: str, sequence: int, pieces: Sequence[str], within_s: float
    ) -> int:
        """Log what is staged as one push: the step that it came before."""
        with as_circuit_errors():
            async with self._line(self.pushed(handle), producer, within_s) as line:
                self._check_open()
                answer = await line.push_staged(handle, producer, sequence, pieces, within_s)
            return _step_of(answer, handle, producer, sequence)

    async def drop_staged(self, handle: str, producer: str, pieces: Sequence[str]) -> None:
        """Forget what is staged."""
        with as_circuit_errors():
            async with self._line(self.pushed(handle), producer, _NEXT_S) as line:
                await line.drop_staged(handle, producer, pieces)

    async def next_sequence(self, handle: str, producer: str) -> int:
        """The number that comes next."""
        with as_circuit_errors():
            async with self._line(self.pushed(handle), producer, _NEXT_S) as line:
                return await line.next_sequence(handle, producer)

    def _rows_of(self, handle: str, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The Z-set that a batch stands for. Raises WrongRows, also where no step could be computed with it."""
        rows = zset_of(batch, self.inputs[self.pushed(handle)], handle)
        try:
            self._trial.check(handle, rows)
        except DataflowError as error:
            raise WrongRows(
                f"the rows for input {handle} cannot be processed, and none of them was kept: "
                f"{error}; correct the rows, and send them with the same number"
            ) from error
        return rows

    @asynccontextmanager
    async def _line(self, handle: str, producer: str, within_s: float) -> AsyncIterator[CallConnection]:
        """The way to the member that has all of a producer's rows for an input."""
        async with AsyncExitStack() as stack:
            try:
                yield await stack.enter_async_context(self.run.calls.to(handle, producer, within_s))
            except TimeoutError:
                raise InputFull(
                    "the circuit is changing its number of members and does not accept rows yet: nothing of "
                    "this push was kept; send it again"
                ) from None

    def _check_open(self) -> None:
        if self.run.calls.closed:
            raise CircuitShutDown(
                "the circuit was shut down: nothing of this push was kept; run its query again with the same state, "
                "and send the push again"
            )

    # -- rows out

    async def output(self, name: str, from_step: int) -> AsyncGenerator[tuple[int, list[pa.RecordBatch]]]:
        """An output from a step on, step by step, until the run is over: each Z-set, in batches."""
        with as_circuit_errors():
            if name not in self.outputs:
                raise UnknownOutput(f"there is no output {name}: the circuit has {', '.join(self.outputs)}")
            spans, at = self.run.follow(name, from_step), from_step
            while (span := await self._next_span(spans, at)) is not None:
                by_step: dict[int, list[pa.RecordBatch]] = {}
                for step, rows in span.updates:
                    by_step.setdefault(step, []).append(rows)
                for step in range(span.lower, span.upper):
                    self.run.calls.has_seen(step + 1)
                    yield step, by_step.get(step, [])
                at = span.upper

    async def complete(self, most: int, within_s: float) -> int:
        """The step below which all are made, or ``most``. Raises TimeoutError.

        A coordinator that has only begun does not know of all that were made before: it is waited for so long.
        """
        async with asyncio.timeout(within_s):
            while not self.coordinator.complete_is_known and self.coordinator.complete < most:  # noqa: ASYNC110 - of whichever
                await asyncio.sleep(_LOOK_S)
        return min(self.coordinator.complete, most)

    async def _next_span(self, spans: AsyncIterator[Span], at: int) -> Span | None:
        """Return the steps of an output from ``at``; None if there are no more."""
        coming = asyncio.ensure_future(anext(spans))
        over = asyncio.create_task(self._over_at(at))
        try:
            await asyncio.wait([coming, over], return_when=asyncio.FIRST_COMPLETED)
            if coming.done():
                return await coming
            over.result()
            return None
        finally:
            for task in (coming, over):
                task.cancel()
            await asyncio.gather(coming, over, return_exceptions=True)

    async def _over_at(self, step: int) -> None:
        if step < await asyncio.shield(self._over):
            await asyncio.Event().wait()  # what is below comes yet

    async def offsets(self, step: int) -> list[tuple[str, int, int, int]]:
        """Which pushes count for a step: input, member, the first that does, and the first that does not any more."""
        with as_circuit_errors():
            return [
                (handle, member, first, until)
                for member in range(self.run.plan.members)
                for handle, (first, until) in (await self.run.offsets(member, step)).items()
                if handle in self.external
            ]

    async def query(self, sql: str, within_s: float = WITHIN_S) -> tuple[int, pa.Table]:
        """Return the result of a SELECT over the `tables`, at one step of all members: that step, and the rows."""
        with as_circuit_errors():
            return await self._queries.ask(sql, within_s)

    # -- steps

    @property
    def coordinator(self) -> Coordinator:
        """The current one."""
        return self.run.coordinator

    async def checkpoint(self) -> int:
        """Make a checkpoint; returns the next step."""
        with as_circuit_errors():
            if self.coordinator.phase in (Phase.STOPPING, Phase.DISMISSING, Phase.STOPPED):
                raise CheckpointNotMade("the circuit is shut down: run it again, then retry")
            return await self.coordinator.checkpoint()

    async def pause(self) -> None:
        """Have no more steps made."""
        with as_circuit_errors():
            await self.run.pause()

    async def start(self) -> None:
        """Resume steps."""
        with as_circuit_errors():
            await self.run.start()

    async def scale(self, members: int) -> int:
        """Change to so many members; returns their first step."""
        with as_circuit_errors():
            if not 1 <= members <= MOST_MEMBERS:
                raise NotScaled(
                    f"a circuit has from 1 to {MOST_MEMBERS} members, not {members}: ask for a number in this range"
                )
            return await self.run.scale(members)

    async def shut_down(self) -> None:
        """End the circuit."""
        with as_circuit_errors():
            await self.run.shut_down()


def _step_of(answer: ask.Answer, handle: str, producer: str, sequence: int) -> int:
    """The step that a push came before. Raises what it is refused with."""
    who = f"producer {producer} sent its number {sequence} for input {handle}"
    match answer:
        case ask.Logged(step):
            return step
        case ask.Gap(expected):
            raise SequenceGap(
                f"{who}, but its next is {expected}: nothing of this push was kept; send again "
                f"from {expected}",
                expected,
            )
        case ask.Reused(expected):
            raise SequenceReused(
                f"{who}, but this number already belongs to other rows; its next is {expected}: use each "
                f"number for one set of rows",
                expected,
            )
        case ask.Passed(expected):
            raise SequencePassed(
                f"{who}, but its next is {expected}: if rows are staged, only the last number may be "
                f"repeated; nothing of this push was kept",
                expected,
            )
        case ask.Lost(piece):
            raise StagedLost(
                f"{who}, but its piece {piece[:200]!r} is no longer staged, because the members have "
                f"changed since, or because the piece was too old; nothing was logged; stage all rows of "
                f"this number again"
            )
        case ask.TooLarge(size, most):
            raise CircuitFailed(
                f"{who}, with {size} staged bytes, but at most {most} bytes can be pushed at once: "
                f"nothing was logged; give each number fewer rows. A Spark query repeats the same batch "
                f"from its checkpoint, so it cannot continue with this checkpoint. Limit its batches "
                f"(maxFilesPerTrigger, maxBytesPerTrigger or the option of its source), and start a new "
                f"checkpoint at the first rows that the query has not written yet"
            )
        case ask.Full(waiting):
            raise InputFull(
                f"{waiting} rows wait for a step, but no step was made in time: nothing of number {sequence} "
                "was kept; start the circuit if it is paused, and send it again"
            )
        case ask.Crowded(waiting, most):
            raise InputFull(
                f"{waiting} bytes of pushes already wait at the member, and the limit is {most}: nothing of "
                "number "
                f"{sequence} was kept; start the circuit if it is paused, and send it again"
            )
        case ask.CouldNot(why):
            raise CircuitFailed(f"{why}; send number {sequence} again: it is applied only once")
    raise AssertionError(f"unexpected answer to a push: {answer}")


@contextmanager
def as_circuit_errors() -> Iterator[None]:
    """Raise as a CircuitError what members, coordinator and store raise."""
    try:
        yield
    except Unscaled as error:
        raise NotScaled(str(error)) from error
    except GivenUp as error:
        raise CheckpointNotMade(str(error)) from error
    except SinceMismatch as error:
        text = (
            f"step {error.asked} of this output is no longer kept, and the first kept step is "
            f"{error.since}: read from that step; the option --keep-output sets how much is kept"
        )
        raise StepForgotten(text, error.since) from error
    except StepOutOfRange as error:
        if error.asked < error.first:
            text = (
                f"the record of pushes for step {error.asked} is no longer kept: records begin at "
                f"step {error.first}"
            )
            raise StepForgotten(text, error.first) from error
        text = (
            f"step {error.asked} has not been made yet; the next step is {error.last}: ask again "
            f"when step {error.asked} has its output"
        )
        raise StepNotThere(text, error.last) from error
    except (StorageError, OSError) as error:
        raise CircuitFailed(str(error)) from error
