"""The gRPC service of a running circuit: pushes go to a member's input log, outputs come from the members' logs."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, assert_never

import grpc
import pyarrow as pa
import xxhash

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
    refusal_of,
)
from nebuli.coordinator.errors import CheckpointNotMade as GivenUp
from nebuli.coordinator.lockstep import Phase
from nebuli.dataflow import SteppedCircuit
from nebuli.members.pushes import push_messages as ask
from nebuli.rpc import circuit_pb2 as wire
from nebuli.rpc.circuit_pb2_grpc import CircuitServicer
from nebuli.rpc.conventions import REFUSAL_KEY
from nebuli.storage.errors import SinceMismatch, StepOutOfRange, StorageError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpc.aio import ServicerContext as Context

    from nebuli.members.local_run import LocalRun
    from nebuli.members.pushes.push_line import PushLine
    from nebuli.storage import Span

_MARGIN_S = 0.5
"""So long before a caller's deadline it is said that the input is full: later, nobody would hear it."""
_DEADLINE_S = 60.0
"""For callers that have none."""
_PART_BYTES = 1 << 20
_SAID_LIMIT = 2000
"""How much of a message is said: gRPC takes 8 KiB of metadata."""


class CircuitService(CircuitServicer):
    """Answers for one run, on its loop. The methods' names are gRPC's."""

    def __init__(self, run: LocalRun) -> None:
        self._run = run
        circuit = SteppedCircuit(run.query.plan, 0)
        self._inputs = circuit.inputs
        self._outputs = circuit.outputs
        self._external = frozenset(run.query.external)
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
        coordinator, members = self._run.coordinator, self._run.members
        return wire.StatusReply(
            phase=coordinator.phase.value,
            epoch=coordinator.epoch,
            next_step=coordinator.next_step,
            paused=coordinator.paused,
            checkpoints=[
                wire.Checkpoint(version=each.version, step=each.step) for each in coordinator.checkpoints
            ],
            members=[
                wire.Member(number=member, pid=members.process(member) or 0)
                for member in range(self._run.query.plan.members)
            ],
        )

    # -- rows in

    async def Push(self, request: wire.PushRequest, context: Context) -> wire.PushReply:
        """Log rows."""
        async with _refusals(context):
            handle, producer, sequence = self._pushed(request.handle), request.producer, request.sequence
            rows = zset_of(decoded(request.rows), self._inputs[handle], handle)
            within_s = max(_time_left(context) - _MARGIN_S, 0.0)
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

    def _line(self, handle: str, producer: str) -> PushLine:
        """The way to the member that has all of a producer's rows for an input: one log checks their numbers."""
        name = ask.log_name(handle, producer).encode()
        lines = self._run.pushes
        return lines[xxhash.xxh3_64_intdigest(name) % len(lines)]

    # -- rows out

    async def Output(self, request: wire.OutputRequest, context: Context) -> AsyncIterator[wire.OutputPart]:
        """Give an output, until the run is over."""
        async with _refusals(context):
            if request.name not in self._outputs:
                raise UnknownOutput(
                    f"there is no output {request.name}: the circuit has {', '.join(self._outputs)}"
                )
            spans = self._run.outputs[request.name].follow(request.name, request.from_step)
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
            for member, remap in enumerate(self._run.remaps):
                await remap.refresh()
                for handle, (first, until) in (await remap.offsets(request.step)).items():
                    if handle in self._external:
                        ranges.append(wire.Range(handle=handle, member=member, first=first, until=until))
            return wire.OffsetsReply(ranges=ranges)

    # -- steps

    async def Checkpoint(self, request: wire.CheckpointRequest, context: Context) -> wire.CheckpointReply:
        """Make a checkpoint."""
        async with _refusals(context):
            coordinator = self._run.coordinator
            if coordinator.phase in (Phase.STOPPING, Phase.STOPPED):
                raise CheckpointNotMade("the circuit is shut down: run it again, and ask then")
            return wire.CheckpointReply(step=await coordinator.checkpoint())

    async def Pause(self, request: wire.PauseRequest, context: Context) -> wire.PauseReply:
        """Have no more steps made."""
        self._run.coordinator.pause()
        return wire.PauseReply()

    async def Start(self, request: wire.StartRequest, context: Context) -> wire.StartReply:
        """Have steps made again."""
        self._run.coordinator.start()
        return wire.StartReply()

    async def ShutDown(self, request: wire.ShutDownRequest, context: Context) -> wire.ShutDownReply:
        """End the circuit."""
        self._run.coordinator.shut_down()
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
        case ask.NotLogged(why):
            raise CircuitFailed(f"{why}; send number {sequence} again, which happens once")
        case ask.Next():
            raise AssertionError("a push is not answered so")
    assert_never(answer)


def _parts(step: int, batches: list[pa.RecordBatch], schema: pa.Schema) -> list[wire.OutputPart]:
    """A step of an output in messages of bounded size, if rows are of bounded size."""
    pieces = [piece for batch in batches for piece in _pieces(batch)]
    pieces = pieces or [pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)]
    return [wire.OutputPart(step=step, rows=encoded(each), last=each is pieces[-1]) for each in pieces]


def _pieces(batch: pa.RecordBatch) -> list[pa.RecordBatch]:
    if batch.num_rows < 2 or batch.nbytes <= _PART_BYTES:
        return [batch]
    half = batch.num_rows // 2
    return [*_pieces(batch.slice(0, half)), *_pieces(batch.slice(half))]


@asynccontextmanager
async def _refusals(context: Context) -> AsyncIterator[None]:
    """Answer with a refusal what is raised."""
    try:
        yield
    except CircuitError as error:
        await _refuse(context, error)
    except GivenUp as error:
        await _refuse(context, CheckpointNotMade(str(error)))
    except SinceMismatch as error:
        text = f"step {error.asked} of this output has been forgotten: read from {error.since} on"
        await _refuse(context, StepForgotten(text, error.since))
    except StepOutOfRange as error:
        if error.asked < error.first:
            text = f"which pushes count for step {error.asked} has been forgotten: it is known from {error.first} on"
            await _refuse(context, StepForgotten(text, error.first))
        text = f"step {error.asked} is not there yet, {error.last} is the next: ask again when its output is there"
        await _refuse(context, StepNotThere(text, error.last))
    except StorageError as error:
        await _refuse(context, CircuitFailed(str(error)))


async def _refuse(context: Context, error: CircuitError) -> None:
    refusal = refusal_of(error)
    refusal.message = refusal.message[:_SAID_LIMIT]
    detail = ((REFUSAL_KEY, refusal.SerializeToString()),)
    await context.abort(grpc.StatusCode.FAILED_PRECONDITION, refusal.message, detail)
