"""The worker's gRPC service: requests in, the node's answers or refusals out."""

from __future__ import annotations

from contextlib import aclosing, asynccontextmanager
from typing import TYPE_CHECKING

import grpc
from pydantic import ValidationError

import netchannel
from nebuli.connectors.errors import SinkInUse
from nebuli.dataflow.errors import DataflowError
from nebuli.node.hosted_fragment import NotAdded
from nebuli.node.records import FRAGMENT
from nebuli.node.worker_node import (
    BusyFragment,
    FragmentStarted,
    IdInUse,
    NoState,
    UnknownFragment,
    WrongNode,
)
from nebuli.rpc import worker_pb2 as wire
from nebuli.rpc.conventions import REFUSAL_KEY
from nebuli.rpc.member_places import NotSucceeded, Succession
from nebuli.rpc.worker_pb2_grpc import WorkerServicer
from nebuli.steps.protocol.errors import CheckpointNotMade, NothingToSave
from nebuli.store import StorageError
from placement.plan import Addition
from topology import ConnectorUnusable
from topology.connectors import unusable

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from grpc.aio import ServicerContext as Context

    from nebuli.node.service.observations import Observed
    from nebuli.node.worker_node import WorkerNode
    from placement.stepped_plan import AnyFragment

__all__ = ["Service"]

_REFUSALS: dict[type[Exception], tuple[grpc.StatusCode, wire.Refusal.Reason]] = {
    UnknownFragment: (grpc.StatusCode.NOT_FOUND, wire.Refusal.REASON_UNKNOWN_ID),
    FragmentStarted: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_ALREADY_STARTED),
    BusyFragment: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_STILL_RUNNING),
    IdInUse: (grpc.StatusCode.ALREADY_EXISTS, wire.Refusal.REASON_ID_IN_USE),
    SinkInUse: (grpc.StatusCode.ALREADY_EXISTS, wire.Refusal.REASON_SINK_IN_USE),
    netchannel.ChannelInUse: (grpc.StatusCode.ALREADY_EXISTS, wire.Refusal.REASON_CHANNEL_IN_USE),
    NoState: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_STATE_UNUSABLE),
    NothingToSave: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_NO_CHECKPOINT),
    CheckpointNotMade: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_NO_CHECKPOINT),
    NotSucceeded: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_NOT_SCALED),
    NotAdded: (grpc.StatusCode.FAILED_PRECONDITION, wire.Refusal.REASON_NOT_ADDED),
    WrongNode: (grpc.StatusCode.INVALID_ARGUMENT, wire.Refusal.REASON_BAD_FRAGMENT),
    ConnectorUnusable: (grpc.StatusCode.INVALID_ARGUMENT, wire.Refusal.REASON_BAD_FRAGMENT),
    ValidationError: (grpc.StatusCode.INVALID_ARGUMENT, wire.Refusal.REASON_BAD_FRAGMENT),
    DataflowError: (grpc.StatusCode.INVALID_ARGUMENT, wire.Refusal.REASON_BAD_FRAGMENT),
    StorageError: (grpc.StatusCode.RESOURCE_EXHAUSTED, wire.Refusal.REASON_STATE_UNUSABLE),
    OSError: (grpc.StatusCode.RESOURCE_EXHAUSTED, wire.Refusal.REASON_STATE_UNUSABLE),
}


class Service(WorkerServicer):
    """Answers gRPC for one node; runs on the worker's loop. The methods' names are gRPC's."""

    def __init__(self, node: WorkerNode, observed: Observed) -> None:
        self._node = node
        self._observed = observed

    async def Register(self, request: wire.RegisterRequest, context: Context) -> wire.RegisterReply:
        """Take a fragment."""
        async with _refusals(context, request.id):
            return wire.RegisterReply(id=self._node.register(self._read(request.fragment), request.id))

    async def Start(self, request: wire.StartRequest, context: Context) -> wire.StartReply:
        """Start a fragment."""
        async with _refusals(context, request.id):
            await self._node.start(request.id, closes=request.closes, left_out=request.left_out)
            return wire.StartReply()

    async def Stop(self, request: wire.StopRequest, context: Context) -> wire.StopReply:
        """Ask a fragment to end."""
        async with _refusals(context, request.id):
            self._node.stop(request.id, at_once=request.at_once)
            return wire.StopReply()

    async def Checkpoint(self, request: wire.CheckpointRequest, context: Context) -> wire.CheckpointReply:
        """Have a checkpoint made."""
        async with _refusals(context, request.id):
            return wire.CheckpointReply(step=await self._node.checkpoint(request.id))

    async def Scale(self, request: wire.ScaleRequest, context: Context) -> wire.ScaleReply:
        """Have other members take over."""
        async with _refusals(context, request.id):
            succession = Succession.model_validate_json(request.succession)
            return wire.ScaleReply(step=await self._node.succeed(request.id, succession))

    async def Add(self, request: wire.AddRequest, context: Context) -> wire.AddReply:
        """Have a part of a query with views be given more operators."""
        async with _refusals(context, request.id):
            addition = Addition.model_validate_json(request.addition)
            await self._node.add(request.id, request.index, addition)
            return wire.AddReply()

    async def Unregister(self, request: wire.UnregisterRequest, context: Context) -> wire.UnregisterReply:
        """Forget a fragment."""
        async with _refusals(context, request.id):
            await self._node.unregister(request.id)
            return wire.UnregisterReply()

    async def Status(self, request: wire.StatusRequest, context: Context) -> wire.StatusReply:
        """Report the state of all fragments."""
        return wire.StatusReply(fragments=[status.message for status in self._node.statuses()])

    async def Logs(self, request: wire.LogsRequest, context: Context) -> AsyncIterator[wire.LogLine]:
        """Return logged lines, and with ``follow`` later ones."""
        async with _refusals(context, request.id):
            async for line in self._node.logged(request.id, follow=request.follow):
                yield wire.LogLine(time=line.time, level=line.level, id=line.id, text=line.text)

    async def Channels(self, request: wire.ChannelsRequest, context: Context) -> wire.ChannelsReply:
        """Report the state of the channels."""
        return self._observed.channels(request.prefix)

    async def Inspect(self, request: wire.InspectRequest, context: Context) -> wire.InspectReply:
        """Report facts about the worker."""
        return self._observed.inspect()

    async def Expect(self, request: wire.ExpectRequest, context: Context) -> AsyncIterator[wire.ExpectReply]:
        """Take what a probe sends, until the caller has enough."""
        async with aclosing(self._observed.expect(request.channel)) as expecting:
            async for _ in expecting:
                yield wire.ExpectReply()

    async def Probe(self, request: wire.ProbeRequest, context: Context) -> wire.ProbeReply:
        """Open a channel to another worker, and measure."""
        return await self._observed.probe(request)

    def _read(self, fragment: str) -> AnyFragment:
        try:
            return FRAGMENT.validate_json(fragment)
        except ValidationError as error:
            if lacking := unusable(error):
                raise ConnectorUnusable(
                    f"worker {self._node.address} lacks a connector of the query: {lacking}; install its "
                    "package on this worker's machine, too"
                ) from error
            raise


@asynccontextmanager
async def _refusals(context: Context, id_: str = "") -> AsyncIterator[None]:
    """Answer what the node raises with its status code, its message and a ``Refusal``."""
    try:
        yield
    except tuple(_REFUSALS) as error:
        code, reason = next(answer for type_, answer in _REFUSALS.items() if isinstance(error, type_))
        refusal = wire.Refusal(reason=reason, id=id_, message=_sentence(error))
        await context.abort(code, refusal.message, ((REFUSAL_KEY, refusal.SerializeToString()),))


def _sentence(error: Exception) -> str:
    if isinstance(error, OSError):
        where = f"{error.filename}: {error.strerror}"
        return f"the worker's state cannot be written: {where}; free space there, or repair it"
    return str(error)
