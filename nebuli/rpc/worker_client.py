"""The other end of a worker's gRPC service."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.conventions import REFUSAL_KEY
from nebuli.rpc.log_lines import LogLine
from nebuli.rpc.status import FragmentStatus
from nebuli.rpc.transport_security import dial
from nebuli.rpc.trust import NO_TRUST
from nebuli.rpc.worker_pb2_grpc import WorkerStub

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Iterator
    from types import TracebackType
    from typing import Self

    from nebuli.rpc.member_places import Succession
    from nebuli.rpc.trust import Trust
    from placement.plan import Addition
    from placement.stepped_plan import AnyFragment

__all__ = ["WorkerClient", "WorkerDenied", "WorkerRefused", "WorkerUnreachable"]

_DEADLINE_S = 5.0
_LOGS_S = 30.0
"""Seconds for all lines that a worker keeps."""
_LOOK_S = 5.0
"""How often is looked whether a worker is there that has a checkpoint made."""
_ADD_S = 120.0
"""A full view gets all rows so far before it is there."""
_PROBE_S = 15.0
"""A probe ends on its own before that."""


class WorkerUnreachable(Exception):
    """The worker does not answer, or not in time; ``what`` happened, without what to do about it."""

    def __init__(self, what: str, advice: str = "") -> None:
        self.what = what
        super().__init__(what + advice)


class WorkerDenied(WorkerUnreachable):
    """The worker answers, but not to us: it has another secret."""


class WorkerRefused(Exception):
    """The worker has refused, with the reason."""

    def __init__(self, refusal: wire.Refusal) -> None:
        super().__init__(refusal.message)
        self.what = str(refusal.message)
        self.refusal = refusal


class WorkerClient:
    """Asks the worker of a node. Calls raise ``WorkerUnreachable`` after seconds of silence, or ``WorkerRefused``."""

    def __init__(self, node: str, address: str, trust: Trust = NO_TRUST) -> None:
        self._node = node
        self._address = address
        self._channel = dial(node, address, trust)
        self._stub = WorkerStub(self._channel)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._channel.close()

    async def register(self, fragment: AnyFragment, id_: str = "") -> str:
        """Hand over a fragment, to have that id; else the worker gives it one. Which it has; the same if done again."""
        request = wire.RegisterRequest(fragment=fragment.model_dump_json(by_alias=True), id=id_)
        with self._errors():
            reply = await self._stub.Register(request, timeout=_DEADLINE_S)
        return str(reply.id)

    async def start(self, id_: str, *, closes: bool = False, left_out: str = "") -> None:
        """Start a fragment.

        ``closes``: of a coordinator, event time ends with this run. ``left_out``: rows that a member leaves out,
        as in `StartRequest`.
        """
        request = wire.StartRequest(id=id_, closes=closes, left_out=left_out)
        with self._errors():
            await self._stub.Start(request, timeout=_DEADLINE_S)

    async def stop(self, id_: str, *, at_once: bool = False) -> None:
        """Ask a fragment to end, or end its process at once."""
        with self._errors():
            await self._stub.Stop(wire.StopRequest(id=id_, at_once=at_once), timeout=_DEADLINE_S)

    async def checkpoint(self, id_: str) -> int:
        """Have the coordinator of a query in steps make a checkpoint; returns the next step.

        To write a large state takes as long as it takes: it is waited for as long as the worker answers.
        """
        return await self._as_long_as_it_answers(self._checkpoint(id_))

    async def _checkpoint(self, id_: str) -> int:
        with self._errors():
            reply = await self._stub.Checkpoint(wire.CheckpointRequest(id=id_))
        return int(reply.step)

    async def succeed(self, id_: str, succession: Succession) -> int:
        """Have the coordinator of a query in steps continue with other members; returns their first step.

        It is waited for as long as the worker answers.
        """
        request = wire.ScaleRequest(id=id_, succession=succession.model_dump_json(by_alias=True))
        return await self._as_long_as_it_answers(self._succeed(request))

    async def _succeed(self, request: wire.ScaleRequest) -> int:
        with self._errors():
            reply = await self._stub.Scale(request)
        return int(reply.step)

    async def _as_long_as_it_answers(self, work: Coroutine[Any, Any, int]) -> int:
        doing = asyncio.ensure_future(work)
        try:
            while not doing.done():
                await asyncio.wait([doing], timeout=_LOOK_S)
                if not doing.done():
                    await self.statuses()
            return doing.result()
        finally:
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)

    async def add(self, id_: str, index: int, addition: Addition) -> None:
        """Have a part of a query with views be given more operators, if it has not: ``index`` came before these."""
        request = wire.AddRequest(id=id_, index=index, addition=addition.model_dump_json(by_alias=True))
        with self._errors():
            await self._stub.Add(request, timeout=_ADD_S)

    async def unregister(self, id_: str) -> None:
        """Have a fragment forgotten."""
        with self._errors():
            await self._stub.Unregister(wire.UnregisterRequest(id=id_), timeout=_DEADLINE_S)

    async def statuses(self) -> list[FragmentStatus]:
        """The statuses of all fragments of the worker."""
        with self._errors():
            reply = await self._stub.Status(wire.StatusRequest(), timeout=_DEADLINE_S)
        return [FragmentStatus.of(message) for message in reply.fragments]

    async def logs(self, id_: str = "", *, follow: bool = False) -> AsyncIterator[LogLine]:
        """Yield the worker's log, of one fragment or of all; with ``follow`` also later lines."""
        timeout = None if follow else _LOGS_S
        with self._errors():
            async for line in self._stub.Logs(wire.LogsRequest(id=id_, follow=follow), timeout=timeout):
                yield LogLine(line.time, line.level, line.id, line.text)

    async def channels(self, prefix: str = "") -> wire.ChannelsReply:
        """How the worker's channels are, of those whose ids begin so."""
        with self._errors():
            request = wire.ChannelsRequest(prefix=prefix)
            reply: wire.ChannelsReply = await self._stub.Channels(request, timeout=_DEADLINE_S)
        return reply

    async def inspect(self) -> wire.InspectReply:
        """Return facts about the worker."""
        with self._errors():
            reply: wire.InspectReply = await self._stub.Inspect(wire.InspectRequest(), timeout=_DEADLINE_S)
        return reply

    @asynccontextmanager
    async def expecting(self, channel: str) -> AsyncIterator[None]:
        """Have the worker take what another one's `probe` sends, for as long as the context is."""
        with self._errors():
            call = self._stub.Expect(wire.ExpectRequest(channel=channel), timeout=_PROBE_S + _DEADLINE_S)
            try:
                await anext(aiter(call))
                yield
            finally:
                call.cancel()

    async def probe(self, channel: str, to: str, send_ms: int) -> wire.ProbeReply:
        """Have the worker open a channel to the address ``to``, and measure."""
        request = wire.ProbeRequest(channel=channel, to=to, send_ms=send_ms)
        with self._errors():
            reply: wire.ProbeReply = await self._stub.Probe(request, timeout=_PROBE_S + send_ms / 1000)
        return reply

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            detail = dict(error.trailing_metadata() or ()).get(REFUSAL_KEY)
            if isinstance(detail, bytes):
                raise WorkerRefused(wire.Refusal.FromString(detail)) from error
            if error.code() is grpc.StatusCode.UNAUTHENTICATED:
                raise WorkerDenied(f"{error.details()} (at {self._address})") from error
            if error.code() is grpc.StatusCode.UNKNOWN:  # an unforeseen error of the call
                message = f"worker {self._node} at {self._address} cannot execute the call: {error.details()}"
                raise WorkerRefused(wire.Refusal(message=message)) from error
            raise WorkerUnreachable(
                f"worker {self._node} does not answer at {self._address}: {error.details()}",
                "; is it running there? 'nebuli doctor TOPOLOGY' shows more",
            ) from error
