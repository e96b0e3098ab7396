"""The fragments of one query on the workers of its nodes, started in any order, and without a policy."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from nebuli.control.errors import SUSPECTS, QueryFailed
from nebuli.rpc.status import FragmentState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from nebuli.rpc.status import FragmentStatus
    from nebuli.rpc.worker_client import WorkerClient
    from placement.plan import Fragment

_POLL_S = 0.1
_SETTLE_S = 2.0


class Deployment:
    """Registers, starts and watches fragments; each worker knows its own by an id of its own."""

    def __init__(self, fragments: Iterable[Fragment], clients: Mapping[str, WorkerClient]) -> None:
        self._fragments = {fragment.id: fragment for fragment in fragments}
        self._clients = clients
        self._local_ids: dict[str, str] = {}

    @property
    def local_ids(self) -> Mapping[str, str]:
        """The workers' ids, by fragment."""
        return self._local_ids

    async def register(self) -> None:
        """Hand each fragment to the worker of its node."""
        for fragment in self._fragments.values():
            self._local_ids[fragment.id] = await self._clients[fragment.node].register(fragment)

    async def start(self, order: Sequence[str] | None = None) -> None:
        """Start the fragments in that order; any will do."""
        for id_ in self._fragments if order is None else order:
            await self._clients[self._fragments[id_].node].start(self._local_ids[id_])

    async def statuses(self) -> dict[str, FragmentStatus]:
        """How each fragment is."""
        nodes = list({fragment.node for fragment in self._fragments.values()})
        answers = await asyncio.gather(*(self._clients[node].statuses() for node in nodes))
        by_local_id = {
            (node, status.id): status
            for node, answer in zip(nodes, answers, strict=True)
            for status in answer
        }
        return {
            id_: by_local_id[fragment.node, self._local_ids[id_]] for id_, fragment in self._fragments.items()
        }

    async def finish(self, report: Callable[[Fragment, FragmentStatus], None] | None = None) -> None:
        """Wait until all fragments have finished; ``report`` is called with every status that is seen.

        ``QueryFailed`` names the fragment that was the first to blame.
        """
        loop = asyncio.get_running_loop()
        deadline = float("inf")
        while True:
            statuses = await self.statuses()
            if report is not None:
                for id_, status in statuses.items():
                    report(self._fragments[id_], status)
            if all(status.state is FragmentState.FINISHED for status in statuses.values()):
                return
            ended_badly = [status for status in statuses.values() if _is_bad(status)]
            if ended_badly:
                deadline = min(deadline, loop.time() + _SETTLE_S)
                if all(status.state.is_final for status in statuses.values()) or loop.time() >= deadline:
                    first = min(ended_badly, key=lambda status: SUSPECTS.index(status.cause))
                    raise QueryFailed(first, self._fragments[first.fragment].node)
            await asyncio.sleep(_POLL_S)


def _is_bad(status: FragmentStatus) -> bool:
    return status.state.is_final and status.state is not FragmentState.FINISHED
