"""The gRPC service of a running circuit: pushes go to a member's input log, outputs come from the members' logs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa
import xxhash

from nebuli.circuits.admission import MARGIN_S
from nebuli.circuits.arrow_bytes import decoded, encoded, without_weight, zset_of
from nebuli.circuits.errors import (
    CheckpointNotMade,
    CircuitError,
    CircuitFailed,
    InputFull,
    SequenceGap,
    SequenceReused,
    StepForgotten,
    StepNotThere,
    UnknownInput,
    UnknownOutput,
)
from nebuli.circuits.refusing import refuse
from nebuli.coordinator.errors import CheckpointNotMade as GivenUp
from nebuli.coordinator.lockstep import Phase
from nebuli.dataflow import SteppedCircuit
from nebuli.members.calls import call_messages as ask
from nebuli.members.calls.output_pieces import PIECE_BYTES, halves
from nebuli.rpc import circuit_pb2 as wire
from nebuli.rpc.circuit_pb2_grpc import CircuitServicer
from nebuli.storage.errors import SinceMismatch, StepOutOfRange, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpc.aio import ServicerContext as Context

    from nebuli.circuits.running_circuit import Running
    from nebuli.members.calls.call_line import CallLine
    from nebuli.storage import Span

_DEADLINE_S = 60.0
"""For callers that have none."""


class CircuitService(CircuitServicer):
    """Answers for a running circuit, on its loop. The methods' names are gRPC's."""

    def __init__(self, run: Running) -> None:
        self._run = run
        circuit = SteppedCircuit(run.plan, 0)
        self._inputs = circuit.inputs
        self._outputs = circuit.outputs
        self._external = frozenset(run.external)
        self._over: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def end(self, step: int) -> None:
        """The run is over: there is nothing in any output from this step on."""
        self._over.set_result(step)

    # -- what there is

    async def Describe(self, request: wire.DescribeRequest, context: Context) -> wire.DescribeReply:
        """Say what can be pushed and read."""
        return wire.DescribeReply(
            inputs=[
                wire.Rows(name=key, schema=_described(schema), external=key in self._external)
                for key, schema in self._inputs.items()
            ],
            outputs=[wire.Rows(name=key, schema=_described(schema)) for key, schema in self._outputs.items()],
        )

    async def Status(self, request: wire.StatusRequest, context: Context) -> wire.StatusReply:
        """Say how the circuit is."""
        coordinator = self._run.coordinator
        return wire.StatusReply(
            phase=coordinator.phase.value,
            epoch=coordinator.epoch,
            next_step=coordinator.next_step,
            paused=coordinator.paused,
            checkpoints=[
                wire.Checkpoint(version=each.version, step=each.step) for each in coordinator.checkpoints
            ],
            members=[
                wire.Member(number=member, pid=self._run.process(member) or 0)
                for member in range(self._run.plan.members)
            ],
        )

    # -- rows in

    async def Push(self, request: wire.PushRequest, context: Context) -> wire.PushReply:
        """Log rows."""
        async with _refusals(context):
            handle, producer, sequence = self._pushed(request.handle), request.producer, request.sequence
            rows = zset_of(decoded(request.rows), self._inputs[handle], handle)
            within_s = max(_time_left(context) - MARGIN_S, 0.0)
            data = bytes(rows.serialize())
            answer = await self._line(handle, producer).push(handle, producer, sequence, data, within_s)
            return wire.PushReply(step=_step_of(answer, handle, producer, sequence))

    async def NextSequence(
        self, request: wire.NextSequenceRequest, context: Context
    ) -> wire.NextSequenceReply:
        """Say which number comes next."""
        async with _refusals(context):
            handle, producer = self._pushed(request.handle), request.producer
            sequence = await self._line(handle, producer).next_sequence(handle, producer)
            return wire.NextSequenceReply(sequence=sequence)

    def _pushed(self, handle: str) -> str:
        """A handle that can be pushed into."""
        if handle in self._external:
            return handle
        if handle in self._inputs:
            raise UnknownInput(
                f"the rows of input {handle} come from the topology's sources: push into one that has none"
            )
        raise UnknownInput(f"there is no input {handle}: the circuit has {', '.join(self._inputs)}")

    def _line(self, handle: str, producer: str) -> CallLine:
        """The way to the member that has all of a producer's rows for an input: one log checks their numbers."""
        name = ask.log_name(handle, producer).encode()
        lines = self._run.calls
        return lines[xxhash.xxh3_64_intdigest(name) % len(lines)]

    # -- rows out

    async def Output(self, request: wire.OutputRequest, context: Context) -> AsyncIterator[wire.OutputPart]:
        """Give an output, until the run is over."""
        async with _refusals(context):
            if request.name not in self._outputs:
                raise UnknownOutput(
                    f"there is no output {request.name}: the circuit has {', '.join(self._outputs)}"
                )
            spans = self._run.follow(request.name, request.from_step)
            schema, at = self._outputs[request.name], request.from_step
            while (span := await self._next_span(spans, at)) is not None:
                by_step: dict[int, list[pa.RecordBatch]] = {}
                for step, rows in span.updates:
                    by_step.setdefault(step, []).append(rows)
                for step in range(span.lower, span.upper):
                    for part in _parts(step, by_step.get(step, []), schema):
                        yield part
                at = span.upper

    async def _next_span(self, spans: AsyncIterator[Span], at: int) -> Span | None:
        """What an output has from step ``at`` on; None if there is nothing any more."""
        coming = asyncio.ensure_future(anext(spans))
        over = asyncio.create_task(self._over_at(at))
        try:
            await asyncio.wait([coming, over], return_when=asyncio.FIRST_COMPLETED)
            return await coming if coming.done() else None
        finally:
            for task in (coming, over):
                task.cancel()
            await asyncio.gather(coming, over, return_exceptions=True)

    async def _over_at(self, step: int) -> None:
        if step < await asyncio.shield(self._over):
            await asyncio.Event().wait()  # what is below comes yet

    async def Offsets(self, request: wire.OffsetsRequest, context: Context) -> wire.OffsetsReply:
        """Say which pushes count for a step."""
        async with _refusals(context):
            ranges = []
            for member in range(self._run.plan.members):
                found = await self._run.offsets(member, request.step)
                for handle, (first, until) in found.items():
                    if handle in self._external:
                        ranges.append(wire.Range(handle=handle, member=member, first=first, until=until))
            return wire.OffsetsReply(ranges=ranges)

    # -- steps

    async def Checkpoint(self, request: wire.CheckpointRequest, context: Context) -> wire.CheckpointReply:
        """Make a checkpoint."""
        async with _refusals(context):
            coordinator = self._run.coordinator
            if coordinator.phase in (Phase.STOPPING, Phase.DISMISSING, Phase.STOPPED):
                raise CheckpointNotMade("the circuit is shut down: run it again, and ask then")
            return wire.CheckpointReply(step=await coordinator.checkpoint())

    async def Pause(self, request: wire.PauseRequest, context: Context) -> wire.PauseReply:
        """Have no more steps made."""
        async with _refusals(context):
            await self._run.pause()
        return wire.PauseReply()

    async def Start(self, request: wire.StartRequest, context: Context) -> wire.StartReply:
        """Have steps made again."""
        async with _refusals(context):
            await self._run.start()
        return wire.StartReply()

    async def ShutDown(self, request: wire.ShutDownRequest, context: Context) -> wire.ShutDownReply:
        """End the circuit."""
        async with _refusals(context):
            await self._run.shut_down()
        return wire.ShutDownReply()


def _described(schema: pa.Schema) -> bytes:
    return bytes(without_weight(schema).serialize())


def _time_left(context: Context) -> float:
    left = context.time_remaining()
    return _DEADLINE_S if left is None else float(left)


def _step_of(answer: ask.Answer, handle: str, producer: str, sequence: int) -> int:
    """The step that a push came before. Raises what it is refused with."""
    who = f"producer {producer} sent its number {sequence} for input {handle}"
    match answer:
        case ask.Logged(step):
            return step
        case ask.Gap(expected):
            raise SequenceGap(
                f"{who}, {expected} is its next: send again from {expected} on, nothing of this one was kept",
                expected,
            )
        case ask.Reused(expected):
            raise SequenceReused(
                f"{who}, which was kept with other rows, {expected} is its next: give all rows a number of their own",
                expected,
            )
        case ask.Full(waiting):
            raise InputFull(
                f"{waiting} rows wait for a step, and none was made in time: nothing of number {sequence} was kept; "
                f"start the circuit if it is paused, and send it again"
            )
        case ask.Crowded(waiting, most):
            raise InputFull(
                f"{waiting} bytes of pushes wait at the member already, and {most} at most do: nothing of number "
                f"{sequence} was kept; start the circuit if it is paused, and send it again"
            )
        case ask.CouldNot(why):
            raise CircuitFailed(f"{why}; send number {sequence} again, which happens once")
    raise AssertionError(f"a push is not answered by {answer}")


def _parts(step: int, batches: list[pa.RecordBatch], schema: pa.Schema) -> list[wire.OutputPart]:
    """A step of an output in messages of bounded size, if rows are of bounded size."""
    pieces = [piece for batch in batches for piece in halves(batch, PIECE_BYTES)]
    pieces = pieces or [pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)]
    return [wire.OutputPart(step=step, rows=encoded(each), last=each is pieces[-1]) for each in pieces]


@asynccontextmanager
async def _refusals(context: Context) -> AsyncIterator[None]:
    """Answer with a refusal what is raised."""
    try:
        yield
    except CircuitError as error:
        await refuse(context, error)
    except GivenUp as error:
        await refuse(context, CheckpointNotMade(str(error)))
    except SinceMismatch as error:
        text = (
            f"step {error.asked} of this output is not kept any more, {error.since} is the first that is: read from "
            f"there on; the option --keep-output says how much is kept"
        )
        await refuse(context, StepForgotten(text, error.since))
    except StepOutOfRange as error:
        if error.asked < error.first:
            text = f"which pushes count for step {error.asked} has been forgotten: it is known from {error.first} on"
            await refuse(context, StepForgotten(text, error.first))
        text = f"step {error.asked} is not there yet, {error.last} is the next: ask again when its output is there"
        await refuse(context, StepNotThere(text, error.last))
    except (StorageError, OSError) as error:
        await refuse(context, CircuitFailed(str(error)))
