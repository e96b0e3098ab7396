"""A query that workers were given, as any later invocation finds it: by its id."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple, Self

from pydantic import BaseModel, ConfigDict

from nebuli.control.deployment import Active, Place
from nebuli.control.global_state import GlobalState, combined
from nebuli.control.supervision import Policy
from nebuli.rpc.trust import Trust
from nebuli.rpc.worker_client import WorkerClient, WorkerUnreachable
from placement import StrategyName
from placement.stepped_plan import AnyFragment, CoordinatorPlacement, MemberFragment
from topology import Access, EngineName

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable
    from types import TracebackType

    from nebuli.rpc import worker_pb2 as wire
    from nebuli.rpc.log_lines import LogLine
    from nebuli.rpc.status import FragmentStatus

__all__ = ["DeployedFragment", "DeployedQuery", "Endpoint", "GivenFile", "Scaling", "Workers", "global_state"]


class DeployedFragment(BaseModel):
    """The place of a fragment: its node, the gRPC address of its worker, and the id that it has there.

    ``access`` names the files that commands show to the worker, by absolute paths.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    fragment: str
    node: str
    grpc: str
    id: str
    access: Access = Access()


class Scaling(BaseModel):
    """The fragments with which a query in steps is to continue: other members, and its coordinator, which stays."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fragments: tuple[DeployedFragment, ...]
    plan: tuple[AnyFragment, ...]

    @property
    def circuit(self) -> str:
        """The name of the members' circuit in the ids of channels."""
        first = self.plan[0]
        assert isinstance(first, MemberFragment)
        return first.circuit


class GivenFile(BaseModel):
    """A file as it was when a query was registered: its text is what counts from then on.

    ``path`` is absolute; relative paths in the text start at its directory, as they did then.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    path: str
    text: str


class DeployedQuery(BaseModel):
    """A query under its global id. ``registered`` is when, as ISO 8601 in UTC.

    ``plan`` are the fragments that its workers have been given.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    name: str
    topology: GivenFile
    query: GivenFile
    registered: str
    deployment: str = ""
    """The id that its channels have; empty: its own. It has another one each time that it begins again."""
    seed: int = 0
    strategy: StrategyName = "bottom-up"
    engine: EngineName | None = None
    """The engine of every node, if it was requested; otherwise that of the topology."""
    without: tuple[str, ...] = ()
    """Nodes that it was placed without, since they were lost."""
    policy: Policy = Policy.WAIT
    fragments: tuple[DeployedFragment, ...]
    plan: tuple[AnyFragment, ...]
    left: tuple[DeployedFragment, ...] = ()
    """Remains of earlier deployments, or of other members, that could not be removed yet."""
    scalings: int = 0
    """How often others were to follow its members."""
    coming: tuple[Scaling, ...] = ()
    """Those that were to do so, where it is not known whether they have, the last one last."""

    @property
    def active(self) -> Active:
        """The query as it is deployed."""
        left = tuple(Place(each.fragment, each.node, each.id) for each in self.left)
        return Active(self.deployment or self.id, self.without, self.plan, left)

    @property
    def others(self) -> tuple[DeployedFragment, ...]:
        """Return other parts of it that workers may have."""
        return (*self.left, *(each for scaling in self.coming for each in scaling.fragments[:-1]))

    @property
    def circuit(self) -> str | None:
        """Where programs reach it, as `nebuli.Circuit` takes it, if it runs in steps."""
        coordinator = self.plan[-1]
        return (
            f"{self.fragments[-1].grpc}/{self.id}" if isinstance(coordinator, CoordinatorPlacement) else None
        )

    @property
    def external(self) -> tuple[str, ...]:
        """The inputs that programs push into."""
        coordinator = self.plan[-1]
        return coordinator.external if isinstance(coordinator, CoordinatorPlacement) else ()


class Endpoint(NamedTuple):
    """How the worker of a node is asked."""

    node: str
    grpc: str
    access: Access = Access()


class Workers:
    """The workers of a query; an async context manager. Unreachable ones are named, and delay no others."""

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self._endpoints = {endpoint.node: endpoint for endpoint in endpoints}
        self._stack = AsyncExitStack()
        self._clients: dict[str, WorkerClient] = {}

    async def __aenter__(self) -> Self:
        """Open clients. Raises TrustUnusable or CertificateError if a secret or certificate is not available."""
        for node, grpc, access in self._endpoints.values():
            client = WorkerClient(node, grpc, Trust.of(access))
            self._clients[node] = await self._stack.enter_async_context(client)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._stack.aclose()

    def located(self, place: Place) -> DeployedFragment:
        """Return the location of a fragment for a client without the topology."""
        endpoint = self._endpoints[place.node]
        return DeployedFragment(**place._asdict(), grpc=endpoint.grpc, access=endpoint.access)

    def client(self, node: str) -> WorkerClient:
        """How to ask the worker of a node; a `Fleet` has it."""
        return self._clients[node]

    async def prepare(self, nodes: Iterable[str]) -> None:
        """Do nothing: the process that runs the workers restarts them."""

    async def channels(self, prefix: str) -> dict[str, wire.ChannelsReply | WorkerUnreachable]:
        """How the channels whose ids begin so are, by node."""

        async def one(client: WorkerClient) -> wire.ChannelsReply | WorkerUnreachable:
            try:
                return await client.channels(prefix)
            except WorkerUnreachable as error:
                return error

        answers = await asyncio.gather(*map(one, self._clients.values()))
        return dict(zip(self._clients, answers, strict=True))

    async def logs(self, each: DeployedFragment, *, follow: bool) -> AsyncIterator[LogLine]:
        """Return a fragment's log at its worker."""
        async for line in self._clients[each.node].logs(each.id, follow=follow):
            yield line


def global_state(statuses: Iterable[FragmentStatus | WorkerUnreachable]) -> GlobalState:
    """Return the state of a query from its workers' reports."""
    return combined(None if isinstance(each, WorkerUnreachable) else each.state for each in statuses)
