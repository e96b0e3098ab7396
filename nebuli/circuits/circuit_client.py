"""`Circuit`: a running query in steps, from any process: rows in, outputs by step, checkpoints, pause and end."""

from __future__ import annotations

import asyncio
import math
import time
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio
import pyarrow as pa

from nebuli.circuits.arrow_bytes import decoded, encoded
from nebuli.circuits.circuit_trust import dial
from nebuli.circuits.errors import CircuitDenied, CircuitFailed, CircuitUnreachable, WrongRows, refused
from nebuli.circuits.push_limit import MAX_BYTES
from nebuli.python_values import one_batch
from nebuli.rpc import circuit_pb2 as wire
from nebuli.rpc.circuit_pb2_grpc import CircuitStub
from nebuli.rpc.conventions import QUERY_KEY, REFUSAL_KEY
from nebuli.rpc.trust import Trust
from netchannel.resumable import Resumable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
    from types import TracebackType
    from typing import Self

    import netchannel


@dataclass(frozen=True, slots=True)
class CircuitStatus:
    """The progress of a circuit. Its coordinator makes steps while ``phase`` is ``running`` and ``paused`` is false.

    ``next_step`` is issued next. All steps below ``complete`` are made, and their results are durable. A coordinator
    that has just started does not know all steps that were made before; once it does, ``caught_up`` is true, and
    ``complete`` does not decrease any more. ``epoch`` rises whenever the circuit resumes from a checkpoint after a
    loss. ``checkpoints`` are the steps from which all members can continue. ``members`` are the process ids of the
    members; None for a member that is being started.
    """

    phase: str
    epoch: int
    next_step: int
    complete: int
    caught_up: bool
    paused: bool
    checkpoints: tuple[int, ...]
    members: tuple[int | None, ...]

    @classmethod
    def of(cls, reply: wire.StatusReply) -> Self:
        """Parse a circuit's status."""
        return cls(
            phase=reply.phase,
            epoch=reply.epoch,
            next_step=reply.next_step,
            complete=reply.complete,
            caught_up=not reply.catching_up,
            paused=reply.paused,
            checkpoints=tuple(each.step for each in reply.checkpoints),
            members=tuple(each.pid or None for each in reply.members),
        )


DEADLINE_S = 30.0
_PAUSE_S = 0.1
SCALE_S = 600.0
"""How long a circuit may take to change members: their state may be large."""


class Circuit:
    """The client of a running query in steps.

    ``address`` is HOST:PORT for a query that ``nebuli run --stepped --serve`` serves. For a query at workers it is
    HOST:PORT/ID, as ``nebuli status`` prints it: the gRPC address of the worker that has the query's coordinator, and
    the query's id. ``secret`` and ``tls`` are those of the query's topology. Calls take at most ``deadline_s``, and
    raise CircuitUnreachable then; so does entering, which waits for a circuit that does not run yet. ValueError for an
    empty address, and for an invalid ``deadline_s``. The methods may be called from several tasks of its event loop.
    """

    def __init__(
        self,
        address: str,
        *,
        secret: str | None = None,
        tls: netchannel.Tls | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        if not address:
            raise ValueError("expected HOST:PORT or HOST:PORT/ID as address, got an empty string")
        if not 0 < deadline_s < math.inf:
            raise ValueError(f"expected seconds above 0 as deadline_s, got {deadline_s}")
        self.address = address
        self.inputs: Mapping[str, pa.Schema] = {}
        """The inputs that accept pushed rows, each with the schema of its rows. Known once the context is entered."""
        self.outputs: Mapping[str, pa.Schema] = {}
        """The outputs that can be read, each with the schema of its rows. Known once the context is entered."""
        self._where, _, self._query = address.partition("/")
        self._metadata = ((QUERY_KEY, self._query),) if self._query else ()
        self._trust = Trust(tls, secret)
        self._deadline_s = deadline_s
        self._channel: grpc.aio.Channel
        self._stub: Any

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows: its inputs and outputs, known once it is entered."""
        rows = "".join(
            f"<tr><th>{side}</th><td>{escape(name)}</td><td>{escape(', '.join(map(_column, schema)))}</td></tr>"
            for side, schemas in (("input", self.inputs), ("output", self.outputs))
            for name, schema in schemas.items()
        )
        return f"<table><caption>Circuit {escape(self.address)}</caption>{rows}</table>"

    async def __aenter__(self) -> Self:
        """Connect, once the circuit answers. Raises CircuitUnreachable, CircuitDenied, CertificateError."""
        self._channel = dial(self._where, self._query, self._trust)
        self._stub = CircuitStub(self._channel)
        try:
            reply = await self._again(self._stub.Describe, wire.DescribeRequest())
        except BaseException:
            await self._channel.close()
            raise
        self.inputs = {each.name: _schema(each) for each in reply.inputs if each.external}
        self.outputs = {each.name: _schema(each) for each in reply.outputs}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Disconnect; the circuit continues."""
        await self._channel.close()

    # -- rows in

    async def push(
        self, handle: str, batch: pa.RecordBatch | pa.Table, *, producer: str, sequence: int
    ) -> int:
        """Push rows into the input ``handle``, exactly once; return when the rows and their number are durable.

        A column ``_weight`` (int64, the last one) is the number of times that each row is added or, if negative,
        retracted; without it each row is added once. The numbers of a ``producer`` at an input are 0, 1, 2 and so on;
        each call must follow the return of the previous one. A number that is sent again has no effect. So after
        CircuitUnreachable, InputFull, CircuitFailed or a cancelled call, send the same rows with the same number again.

        Returns the step that was the next one when the rows arrived. The rows count for this step, or for one of the
        steps soon after it, which `offsets` shows. If the number had an effect before, its rows count for an earlier
        step.

        Waits while too many rows are in no step yet, for example because the circuit is paused.

        Raises:
            UnknownInput, WrongRows: the circuit has no such input, or the rows do not match the input.
            SequenceGap, SequenceReused: the number is above the next one, or was used for other rows.
            InputFull: no step took the waiting rows before the deadline; the new rows were not logged.
            CircuitFailed: the store failed.
        """
        request = wire.PushRequest(handle=handle, producer=producer, sequence=sequence, rows=_rows(batch))
        reply = await self._again(self._stub.Push, request)
        return int(reply.step)

    async def stage(
        self, handle: str, batch: pa.RecordBatch | pa.Table, *, producer: str, sequence: int
    ) -> str | None:
        """Stage rows for a `push_staged` with this number; return the name of this piece, durable but not visible.

        Several processes may each stage some of the rows. Rows that are staged again are another piece, with another
        name. Pieces that are in no push are deleted at the next push of the producer, and after some hours. Returns
        None, and keeps nothing, if this number, or a later one, was pushed before.

        Raises UnknownInput, WrongRows, InputFull, CircuitFailed.
        """
        request = wire.StageRequest(handle=handle, producer=producer, sequence=sequence, rows=_rows(batch))
        reply = await self._again(self._stub.Stage, request)
        return str(reply.piece) or None

    async def push_staged(self, handle: str, pieces: Sequence[str], *, producer: str, sequence: int) -> int:
        """Push the rows of all pieces as one push, for one step; otherwise as `push`.

        The numbers of a producer that stages must grow, and may have gaps. If the last number is pushed again, it has
        no effect, whichever rows are then staged for it. After CircuitUnreachable, InputFull, CircuitFailed or a
        cancelled call, push again.

        Raises:
            UnknownInput: the circuit has no such input.
            SequencePassed: a later number was pushed.
            StagedLost: a piece does not exist any more, and nothing was logged: stage all rows again.
            InputFull, CircuitFailed: as `push`.
        """
        request = wire.PushStagedRequest(handle=handle, producer=producer, sequence=sequence, pieces=pieces)
        reply = await self._again(self._stub.PushStaged, request)
        return int(reply.step)

    async def drop_staged(self, handle: str, pieces: Sequence[str], *, producer: str) -> None:
        """Delete pieces that will not be pushed; missing pieces are ignored."""
        request = wire.DropStagedRequest(handle=handle, producer=producer, pieces=pieces)
        await self._again(self._stub.DropStaged, request)

    async def next_sequence(self, handle: str, producer: str) -> int:
        """Return the next number of a producer at an input; all below it are durable. Raises UnknownInput."""
        request = wire.NextSequenceRequest(handle=handle, producer=producer)
        reply = await self._again(self._stub.NextSequence, request)
        return int(reply.sequence)

    # -- rows out

    def output(self, name: str, from_step: int = 0) -> AsyncGenerator[tuple[int, pa.RecordBatch]]:
        """Yield each step from a given one on, once and in order, with its changes.

        Changes are a Z-set, whose last column is ``_weight``. A step without changes has no rows. Yielded steps are
        durable and final.
        Ends when the circuit is shut down. If the circuit does not answer, the iterator waits for it, until the
        deadline at most, and continues at the same step. A slow reader does not delay others. A cancelled call of the
        iterator takes no step: the next call returns it.

        Raises UnknownOutput, StepForgotten, CircuitUnreachable.
        """
        return Resumable(self._output(name, from_step))

    async def _output(
        self, name: str, from_step: int
    ) -> AsyncGenerator[Sequence[tuple[int, pa.RecordBatch]], None]:
        step = from_step
        away_since: float | None = None
        while True:
            try:
                async with aclosing(self._steps(name, step)) as steps:
                    async for step_read, batch in steps:
                        yield [(step_read, batch)]
                        step, away_since = step_read + 1, None
            except CircuitDenied:
                raise
            except CircuitUnreachable:
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > self._deadline_s:
                    raise
                await asyncio.sleep(_PAUSE_S)
            else:
                return

    async def _steps(self, name: str, from_step: int) -> AsyncGenerator[tuple[int, pa.RecordBatch]]:
        parts: list[pa.RecordBatch] = []
        with self._errors():
            request = wire.OutputRequest(name=name, from_step=from_step)
            call = self._stub.Output(request, metadata=self._metadata)
            try:
                async for part in call:
                    parts.append(decoded(part.rows))
                    if part.last:
                        yield part.step, parts[0] if len(parts) == 1 else pa.concat_batches(parts)
                        parts = []
            finally:
                call.cancel()

    async def offsets(self, step: int) -> dict[str, tuple[int, int]]:
        """Return the pushes that count for a step: for each channel a range, whose last number is excluded.

        A channel, ``HANDLE/MEMBER``, has the pushes of some producers of an input, numbered in the order in which they
        arrived in its log. If there is only one producer, these are its own numbers. The ranges of successive steps
        adjoin. They are known from the older of the two checkpoints on. Raises StepForgotten, StepNotThere.
        """
        reply = await self._again(self._stub.Offsets, wire.OffsetsRequest(step=step))
        return {f"{each.handle}/{each.member}": (each.first, each.until) for each in reply.ranges}

    async def query(self, sql: str) -> tuple[int, pa.Table]:
        """Return the result of a SELECT, and its step: the result includes exactly the steps below it, at all members.

        Its tables are the outputs, the views, and the inputs whose logical source is ``materialized``, by their
        names. Each table has the sum of all changes; a row of weight 2 appears twice. The SQL is DuckDB's: one
        statement that only reads. Steps continue meanwhile. Pushed rows are in the result once a step has taken them.

        Raises:
            WrongQuery: the statement does more than read, or DuckDB cannot execute it; the message shows the place.
            ContentsUnknown: a table was not kept, or has a row that was retracted more often than it was added.
            QueryTooLarge: the query reads, holds or returns too much.
            QueryTimedOut: the query was not finished, or a member did not answer, before the deadline.
        """
        reply = await self._again(self._stub.Query, wire.QueryRequest(sql=sql))
        return int(reply.step), pa.ipc.open_stream(reply.rows).read_all()

    # -- steps

    async def checkpoint(self) -> int:
        """Make a checkpoint at all members; return the next step. Raises CheckpointNotMade."""
        with self._errors():
            reply = await self._call(self._stub.Checkpoint, wire.CheckpointRequest())
        return int(reply.step)

    async def pause(self) -> None:
        """Stop making steps, after the current one, until `start`; pushes are still logged."""
        await self._again(self._stub.Pause, wire.PauseRequest())

    async def start(self) -> None:
        """Resume steps."""
        await self._again(self._stub.Start, wire.StartRequest())

    async def scale(self, members: int, *, deadline_s: float = SCALE_S) -> int:
        """Change the number of members, to at least 1; return the first step of the new members.

        Pushes wait meanwhile. Returns once the new members run. Raises NotScaled if the circuit continues with its
        current members, and CircuitUnreachable if the outcome is unknown: `status` shows it.
        """
        with self._errors():
            request = wire.ScaleRequest(members=members)
            reply = await self._stub.Scale(request, timeout=deadline_s, metadata=self._metadata)
        return int(reply.step)

    async def shut_down(self) -> None:
        """End the circuit, with a checkpoint if all members are present; return when the end begins.

        If the query is run again with the same state, it resumes where it ended.
        """
        with self._errors():
            await self._call(self._stub.ShutDown, wire.ShutDownRequest())

    async def status(self) -> CircuitStatus:
        """Return the status of the circuit."""
        return CircuitStatus.of(await self._again(self._stub.Status, wire.StatusRequest()))

    # -- calls

    async def _call(self, call: Callable[..., Awaitable[Any]], request: Any) -> Any:
        return await call(request, timeout=self._deadline_s, metadata=self._metadata)

    async def _again(self, call: Callable[..., Awaitable[Any]], request: Any) -> Any:
        """Call, and call again while the circuit is away, until the deadline: what may be done twice."""
        deadline = time.monotonic() + self._deadline_s
        while True:
            try:
                with self._errors():
                    left_s = max(deadline - time.monotonic(), 0.0)
                    return await call(request, timeout=left_s, metadata=self._metadata)
            except CircuitDenied:
                raise
            except CircuitUnreachable:
                if time.monotonic() + _PAUSE_S >= deadline:
                    raise
                await asyncio.sleep(_PAUSE_S)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            detail = dict(error.trailing_metadata() or ()).get(REFUSAL_KEY)
            if isinstance(detail, bytes):
                raise refused(wire.Refusal.FromString(detail)) from None
            raise self._meant(error) from error

    def _meant(self, error: grpc.aio.AioRpcError) -> Exception:
        code, where = error.code(), f"the circuit at {self.address}"
        match code:
            case grpc.StatusCode.UNAUTHENTICATED:
                return CircuitDenied(
                    f"{where} refuses this client: {error.details()}; give Circuit the secret of "
                    f"the circuit's topology"
                )
            case grpc.StatusCode.UNIMPLEMENTED:
                return CircuitFailed(
                    f"the server at {self.address} is not a circuit, or has another version: give the address "
                    f"that 'nebuli run --stepped --serve' or 'nebuli status' prints"
                )
            case grpc.StatusCode.DEADLINE_EXCEEDED:
                return CircuitUnreachable(
                    f"{where} did not answer within {self._deadline_s:g} s, and may have executed the call: "
                    f"check its status; if the call was a push, repeat it with the same number; {self._advice}"
                )
            case grpc.StatusCode.NOT_FOUND:
                return CircuitFailed(f"{where}: {error.details()}")
            case grpc.StatusCode.UNAVAILABLE | grpc.StatusCode.CANCELLED:
                return CircuitUnreachable(f"{where} cannot be reached: {error.details()}; {self._advice}")
        return CircuitFailed(f"{where} cannot execute the call: {error.details()}")

    @property
    def _advice(self) -> str:
        served = f"'nebuli run --stepped --serve {self._where}' is running"
        if self._query:
            served = f"'nebuli status {self._query}' shows that it is running there"
        return (
            f"check that {served}, and that the secret and the certificates are those of the "
            f"circuit's topology"
        )


def _rows(batch: pa.RecordBatch | pa.Table) -> bytes:
    rows = encoded(one_batch(batch))
    if len(rows) > MAX_BYTES:
        raise WrongRows(f"the batch has {len(rows)} bytes, and the limit is {MAX_BYTES}: push it in pieces")
    return rows


def _schema(rows: wire.Rows) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(rows.schema))


def _column(field: pa.Field) -> str:
    return f"{field.name}: {field.type}"
