"""Circuits over HTTP, at a worker: each by the id of its query, as long as its coordinator is here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.http.http_server import passing_on
from nebuli.http.problems import Problem
from nebuli.rpc.ids import query_of
from nebuli.rpc.status import FragmentState
from placement.stepped_plan import CoordinatorPlacement

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from nebuli.node.hosted_fragment import Host
    from nebuli.node.worker_node import WorkerNode

__all__ = ["serving"]


def serving(address: str, node: WorkerNode, host: Host) -> AbstractAsyncContextManager[str]:
    """Serve at an address, as long as the context is: the URL above those of all queries. Raises CannotServe."""

    def socket_of(query: str) -> Path:
        for status, fragment in node.fragments():
            if query_of(status.id) == query and isinstance(fragment, CoordinatorPlacement):
                if status.state is not FragmentState.RUNNING:
                    raise Problem(
                        503,
                        "not_running",
                        f"query {query} is {status.state}",
                        f"'nebuli start {query}' starts it",
                    )
                return host.http_socket(status.id)
        raise Problem(
            404,
            "unknown_query",
            f"worker {node.address} has no coordinator of a query {query[:40]!r}",
            "ask at the path /ID/... of the coordinator's address, which 'nebuli status ID' prints",
        )

    return passing_on(socket_of, address, host.trust)
