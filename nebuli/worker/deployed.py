"""A query that workers were given, as any later invocation finds it: by its id, with theirs."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from nebuli.worker.client import WorkerClient, WorkerRefused, WorkerUnreachable
from nebuli.worker.deployment import status_in
from nebuli.worker.global_state import GlobalState, combined
from nebuli.worker.supervision import Policy
from nebuli.worker.trust import Trust
from nebuli.worker.worker_pb2 import Refusal
from topology import Access

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
    from types import TracebackType

    from nebuli.worker import worker_pb2 as wire
    from nebuli.worker.logs import LogLine
    from nebuli.worker.status import FragmentStatus
    from placement import Fragment

__all__ = ["DeployedFragment", "DeployedQuery", "Endpoint", "Workers", "global_state"]


class DeployedFragment(BaseModel):
    """Where a fragment is: its node, how its worker is called, and the id that the worker gave it.

    ``access`` names the files that commands show to the worker, by absolute paths.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fragment: str
    node: str
    grpc: str
    id: str
    access: Access = Access()


class DeployedQuery(BaseModel):
    """A query under its global id. ``registered`` is when, as ISO 8601 in UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    topology: str
    query: str
    registered: str
    deployment: str = ""
    """The id that its channels have; empty: its own. It has another one each time that it begins again."""
    seed: int = 0
    without: tuple[str, ...] = ()
    """Nodes that it was placed without, since they were lost."""
    policy: Policy = Policy.WAIT
    fragments: tuple[DeployedFragment, ...]


class Endpoint(NamedTuple):
    """How the worker of a node is asked."""

    node: str
    grpc: str
    access: Access = Access()


class Workers:
    """The workers of a query; an async context manager. What cannot be reached is named, and keeps nothing else up."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = {endpoint.node: endpoint for endpoint in endpoints}
        self._stack = AsyncExitStack()
        self._clients: dict[str, WorkerClient] = {}

    async def __aenter__(self) -> Self:
        """Raises TrustUnusable or CertificateError where a secret or certificate cannot be had."""
        for node, grpc, access in self._endpoints.values():
            client = WorkerClient(node, grpc, Trust.of(access))
            self._clients[node] = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def client(self, node: str) -> WorkerClient:
        """How to ask the worker of a node; a `Fleet` has it."""
        return self._clients[node]

    async def prepare(self, nodes: Iterable[str]) -> None:
        """Whoever runs the workers starts them again."""

    async def register(self, fragments: Iterable[Fragment]) -> list[DeployedFragment]:
        """Hand over the fragments; none stays behind if one of them is refused. Raises as `WorkerClient` does."""
        deployed: list[DeployedFragment] = []
        try:
            for fragment in fragments:
                id_ = await self._clients[fragment.node].register(fragment)
                _, grpc, access = self._endpoints[fragment.node]
                deployed.append(
                    DeployedFragment(
                        fragment=fragment.id, node=fragment.node, grpc=grpc, id=id_, access=access
                    )
                )
        except (WorkerRefused, WorkerUnreachable):
            await self.unregister(deployed)
            raise
        return deployed

    async def start(self, fragments: Iterable[DeployedFragment]) -> None:
        """Start those that are registered. Raises as `WorkerClient` does; what was started is stopped again then."""
        started: list[DeployedFragment] = []
        try:
            for each in fragments:
                await self._clients[each.node].start(each.id)
                started.append(each)
        except (WorkerRefused, WorkerUnreachable):
            await self.stop(started)
            raise

    async def stop(
        self, fragments: Iterable[DeployedFragment], *, at_once: bool = False
    ) -> list[WorkerUnreachable]:
        """Ask all to end, or end their processes at once; harmless where they have. Who could not be asked."""
        return await self._all(fragments, lambda client, id_: client.stop(id_, at_once=at_once))

    async def unregister(self, fragments: Iterable[DeployedFragment]) -> list[WorkerUnreachable]:
        """Have all forgotten. Who could not be asked. Raises WorkerRefused for what still runs."""
        return await self._all(fragments, lambda client, id_: client.unregister(id_))

    async def _all(
        self, fragments: Iterable[DeployedFragment], ask: Callable[[WorkerClient, str], Awaitable[None]]
    ) -> list[WorkerUnreachable]:
        async def one(each: DeployedFragment) -> WorkerUnreachable | None:
            try:
                await ask(self._clients[each.node], each.id)
            except WorkerUnreachable as error:
                return error
            except WorkerRefused as error:
                if error.refusal.reason != Refusal.REASON_UNKNOWN_ID:
                    raise
            return None

        return [error for error in await asyncio.gather(*map(one, fragments)) if error is not None]

    async def statuses(
        self, fragments: Iterable[DeployedFragment]
    ) -> list[FragmentStatus | WorkerUnreachable]:
        """How each fragment is, in their order."""
        fragments = list(fragments)
        nodes = list({each.node for each in fragments})
        answers = await asyncio.gather(*(self._of(node) for node in nodes))
        by_node = dict(zip(nodes, answers, strict=True))
        return [_status(each, by_node[each.node]) for each in fragments]

    async def channels(self, prefix: str) -> dict[str, wire.ChannelsReply | WorkerUnreachable]:
        """How the channels whose ids begin so are, by node."""

        async def one(client: WorkerClient) -> wire.ChannelsReply | WorkerUnreachable:
            try:
                return await client.channels(prefix)
            except WorkerUnreachable as error:
                return error

        answers = await asyncio.gather(*map(one, self._clients.values()))
        return dict(zip(self._clients, answers, strict=True))

    async def _of(self, node: str) -> list[FragmentStatus] | WorkerUnreachable:
        try:
            return await self._clients[node].statuses()
        except WorkerUnreachable as error:
            return error

    async def logs(self, each: DeployedFragment, *, follow: bool) -> AsyncIterator[LogLine]:
        """What a fragment's worker has logged about it."""
        async for line in self._clients[each.node].logs(each.id, follow=follow):
            yield line


def _status(
    each: DeployedFragment, answer: list[FragmentStatus] | WorkerUnreachable
) -> FragmentStatus | WorkerUnreachable:
    return status_in(answer, each.id, each.fragment)


def global_state(statuses: Iterable[FragmentStatus | WorkerUnreachable]) -> GlobalState:
    """The state of a query from what its workers say."""
    return combined(None if isinstance(each, WorkerUnreachable) else each.state for each in statuses)
