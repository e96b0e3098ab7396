"""The gRPC service of a running circuit: pushes go to a member's input log, outputs come from the members' logs."""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.circuits.admission import MARGIN_S, refuse
from nebuli.circuits.arrow_bytes import decoded, encoded, table_bytes, without_weight
from nebuli.circuits.errors import CircuitError
from nebuli.rpc import circuit_pb2 as wire
from nebuli.rpc.circuit_pb2_grpc import CircuitServicer
from nebuli.steps.member.calls.output_pieces import PIECE_BYTES, halves

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpc.aio import ServicerContext as Context

    from nebuli.circuits.circuit_calls import CircuitCalls

_DEADLINE_S = 60.0
"""For callers that have none."""


class CircuitService(CircuitServicer):
    """Answers for a running circuit, on its loop. The methods' names are gRPC's."""

    def __init__(self, calls: CircuitCalls) -> None:
        self._calls = calls

    # -- what there is

    async def Describe(self, request: wire.DescribeRequest, context: Context) -> wire.DescribeReply:
        """Return the inputs and outputs."""
        async with self._refusals(context):
            calls = self._calls
            return wire.DescribeReply(
                inputs=[
                    wire.Rows(name=key, schema=_described(schema), external=key in calls.external)
                    for key, schema in calls.inputs.items()
                ],
                outputs=[
                    wire.Rows(name=key, schema=_described(schema)) for key, schema in calls.outputs.items()
                ],
            )

    async def Status(self, request: wire.StatusRequest, context: Context) -> wire.StatusReply:
        """Return the status of the circuit."""
        async with self._refusals(context):
            return self._status()

    def _status(self) -> wire.StatusReply:
        run = self._calls.run
        coordinator = run.coordinator
        return wire.StatusReply(
            phase=coordinator.phase.value,
            epoch=coordinator.epoch,
            next_step=coordinator.next_step,
            complete=coordinator.complete,
            catching_up=not coordinator.complete_is_known,
            paused=coordinator.paused,
            checkpoints=[
                wire.Checkpoint(version=each.version, step=each.step) for each in coordinator.checkpoints
            ],
            members=[
                wire.Member(number=member, pid=run.process(member) or 0) for member in range(run.plan.members)
            ],
        )

    # -- rows in

    async def Push(self, request: wire.PushRequest, context: Context) -> wire.PushReply:
        """Log rows."""
        async with self._refusals(context):
            self._calls.pushed(request.handle)  # before what is in it is looked at
            batch = decoded(request.rows)
            within_s = max(_time_left(context) - MARGIN_S, 0.0)
            step = await self._calls.push(request.handle, request.producer, request.sequence, batch, within_s)
            return wire.PushReply(step=step)

    async def Stage(self, request: wire.StageRequest, context: Context) -> wire.StageReply:
        """Keep rows for a push."""
        async with self._refusals(context):
            self._calls.pushed(request.handle)
            batch = decoded(request.rows)
            within_s = max(_time_left(context) - MARGIN_S, 0.0)
            piece = await self._calls.stage(
                request.handle, request.producer, request.sequence, batch, within_s
            )
            return wire.StageReply(piece=piece)

    async def PushStaged(self, request: wire.PushStagedRequest, context: Context) -> wire.PushReply:
        """Log what is staged."""
        async with self._refusals(context):
            within_s = max(_time_left(context) - MARGIN_S, 0.0)
            step = await self._calls.push_staged(
                request.handle, request.producer, request.sequence, request.pieces, within_s
            )
            return wire.PushReply(step=step)

    async def DropStaged(self, request: wire.DropStagedRequest, context: Context) -> wire.DropStagedReply:
        """Forget what is staged."""
        async with self._refusals(context):
            await self._calls.drop_staged(request.handle, request.producer, request.pieces)
            return wire.DropStagedReply()

    async def NextSequence(
        self, request: wire.NextSequenceRequest, context: Context
    ) -> wire.NextSequenceReply:
        """Return the next number."""
        async with self._refusals(context):
            sequence = await self._calls.next_sequence(request.handle, request.producer)
            return wire.NextSequenceReply(sequence=sequence)

    # -- rows out

    async def Output(self, request: wire.OutputRequest, context: Context) -> AsyncIterator[wire.OutputPart]:
        """Give an output, until the run is over."""
        async with self._refusals(context):
            async for step, batches in self._calls.output(request.name, request.from_step):
                for part in _parts(step, batches, self._calls.outputs[request.name]):
                    yield part

    async def Offsets(self, request: wire.OffsetsRequest, context: Context) -> wire.OffsetsReply:
        """Return the pushes that count for a step."""
        async with self._refusals(context):
            ranges = [
                wire.Range(handle=handle, member=member, first=first, until=until)
                for handle, member, first, until in await self._calls.offsets(request.step)
            ]
            return wire.OffsetsReply(ranges=ranges)

    async def Query(self, request: wire.QueryRequest, context: Context) -> wire.QueryReply:
        """Answer a SELECT."""
        async with self._refusals(context):
            within_s = max(_time_left(context) - MARGIN_S, 0.0)
            step, rows = await self._calls.query(request.sql, within_s)
            return wire.QueryReply(step=step, rows=table_bytes(rows))

    # -- steps

    async def Checkpoint(self, request: wire.CheckpointRequest, context: Context) -> wire.CheckpointReply:
        """Make a checkpoint."""
        async with self._refusals(context):
            return wire.CheckpointReply(step=await self._calls.checkpoint())

    async def Pause(self, request: wire.PauseRequest, context: Context) -> wire.PauseReply:
        """Have no more steps made."""
        async with self._refusals(context):
            await self._calls.pause()
        return wire.PauseReply()

    async def Start(self, request: wire.StartRequest, context: Context) -> wire.StartReply:
        """Resume steps."""
        async with self._refusals(context):
            await self._calls.start()
        return wire.StartReply()

    async def Scale(self, request: wire.ScaleRequest, context: Context) -> wire.ScaleReply:
        """Change the number of members."""
        async with self._refusals(context):
            return wire.ScaleReply(step=await self._calls.scale(request.members))

    async def ShutDown(self, request: wire.ShutDownRequest, context: Context) -> wire.ShutDownReply:
        """End the circuit."""
        async with self._refusals(context):
            await self._calls.shut_down()
        return wire.ShutDownReply()

    @asynccontextmanager
    async def _refusals(self, context: Context) -> AsyncIterator[None]:
        """Answer with a refusal what is raised, and, once the circuit has failed, with the reason."""
        try:
            with self._calls.answering():
                yield
        except CircuitError as error:
            await refuse(context, error)


def _described(schema: pa.Schema) -> bytes:
    return bytes(without_weight(schema).serialize())


def _time_left(context: Context) -> float:
    left = context.time_remaining()
    return _DEADLINE_S if left is None else float(left)


def _parts(step: int, batches: list[pa.RecordBatch], schema: pa.Schema) -> list[wire.OutputPart]:
    """A step of an output in messages of bounded size, if rows are of bounded size."""
    pieces = [piece for batch in batches for piece in halves(batch, PIECE_BYTES)]
    pieces = pieces or [pa.record_batch([pa.nulls(0, field.type) for field in schema], schema=schema)]
    return [wire.OutputPart(step=step, rows=encoded(each), last=each is pieces[-1]) for each in pieces]
