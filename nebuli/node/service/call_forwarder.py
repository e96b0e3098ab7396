"""`Forwarding`: calls to circuits, from the worker's gRPC server to the processes of their coordinators.

A circuit is reached where its worker is, under the id of its query, with the topology's certificates and secret: no
additional port, and the same address even if the process changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from nebuli.circuits.circuit_trust import proofs
from nebuli.rpc.circuit_pb2 import DESCRIPTOR
from nebuli.rpc.conventions import QUERY_KEY, REFUSAL_KEY
from nebuli.rpc.ids import query_of
from nebuli.rpc.proof import checked
from nebuli.rpc.status import FragmentState
from placement.stepped_plan import CoordinatorPlacement

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path
    from types import TracebackType
    from typing import Self

    from grpc.aio import ServicerContext as Context

    from nebuli.node.hosted_fragment import Host
    from nebuli.node.worker_node import WorkerNode
    from nebuli.rpc.proof import Proofs

__all__ = ["CIRCUITS", "Forwarding"]

_SERVICE = DESCRIPTOR.services_by_name["Circuit"]
CIRCUITS = f"/{_SERVICE.full_name}/"
"""How the methods begin that are for circuits."""
_STREAMS = {f"{CIRCUITS}{each.name}" for each in _SERVICE.methods if each.server_streaming}
_DEADLINE_S = 60.0
"""For callers that have none."""
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
]


class Forwarding(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """Passes requests and answers on as they are, for the circuits whose coordinators the node has."""

    def __init__(self, node: WorkerNode, host: Host) -> None:
        self._node = node
        self._host = host
        self._proofs: dict[str, Proofs] = {}
        self._channels: dict[Path, grpc.aio.Channel] = {}

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for channel in self._channels.values():
            await channel.close()

    def service(self, handler_call_details: Any) -> Any:
        """Return the handler of a call, if it is to a circuit; called by gRPC."""
        method = handler_call_details.method
        if not method.startswith(CIRCUITS):
            return None
        query = dict(handler_call_details.invocation_metadata).get(QUERY_KEY, "")
        handler = self._handler(method, query)
        if (secret := self._host.trust.secret) is None:
            return handler
        return checked(handler, self._proofs_of(secret, query), handler_call_details)

    def _proofs_of(self, secret: str, query: str) -> Proofs:
        """Those of a query are kept while it is here: a proof is good once."""
        here = {query_of(each.id) for each in self._node.statuses()}
        self._proofs = {each: kept for each, kept in self._proofs.items() if each in here}
        found = self._proofs.get(query) or proofs(secret, query)
        if query in here:
            self._proofs[query] = found
        return found

    def _handler(self, method: str, query: str) -> Any:
        async def one(request: bytes, context: Context) -> bytes:
            call = (await self._channel(query, context)).unary_unary(method)
            try:
                # A process that is being started, or started again, is waited for, until the caller's deadline.
                answer: bytes = await call(
                    request, timeout=context.time_remaining() or _DEADLINE_S, wait_for_ready=True
                )
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
                raise
            return answer

        async def several(request: bytes, context: Context) -> AsyncIterator[bytes]:
            call = (await self._channel(query, context)).unary_stream(method)(
                request, timeout=context.time_remaining()
            )
            try:
                async for answer in call:
                    yield answer
            except grpc.aio.AioRpcError as error:
                await _pass_on(error, context)
            finally:
                call.cancel()

        if method in _STREAMS:
            return grpc.unary_stream_rpc_method_handler(several)
        return grpc.unary_unary_rpc_method_handler(one)

    async def _channel(self, query: str, context: Context) -> grpc.aio.Channel:
        """To the process of a query's coordinator; ends the call if that is not here, or not there."""
        found = [
            (status, fragment)
            for status, fragment in self._node.fragments()
            if query_of(status.id) == query and isinstance(fragment, CoordinatorPlacement)
        ]
        if not found:
            await context.abort(
                grpc.StatusCode.NOT_FOUND,
                f"worker {self._node.address} has no query in steps {query or 'without an id'}: give Circuit "
                f"the address that 'nebuli status ID' prints, HOST:PORT/ID",
            )
        ((status, _),) = found
        if status.state is not FragmentState.RUNNING:
            await context.abort(
                grpc.StatusCode.UNAVAILABLE,
                f"query {query} is {status.state}: 'nebuli start {query}' starts it",
            )
        path = self._host.socket(status.id)
        if path not in self._channels:
            self._channels[path] = grpc.aio.insecure_channel(f"unix:{path}", options=_OPTIONS)
        return self._channels[path]


async def _pass_on(error: grpc.aio.AioRpcError, context: Context) -> None:
    """End the call as the circuit's process has ended it."""
    trailing = tuple((key, value) for key, value in error.trailing_metadata() or () if key == REFUSAL_KEY)
    await context.abort(error.code(), error.details() or "", trailing)
