"""How a query ends before its sources do.

::

    QueryFailed      a fragment has failed on its own, or was stopped on request
    QueryLost        a part of it is lost, and it can neither continue nor start over
    NodeUnreachable  a node does not answer, and the policy is to fail
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.rpc.status import Cause

if TYPE_CHECKING:
    from nebuli.rpc.status import FragmentStatus

__all__ = ["SUSPECTS", "NodeUnreachable", "QueryFailed", "QueryLost"]

SUSPECTS = (Cause.LOST, Cause.INPUT, Cause.ITSELF, Cause.UPSTREAM, Cause.DOWNSTREAM, Cause.REQUEST)
"""The causes to believe when several fragments ended: the others were notified by these."""


class QueryFailed(Exception):
    """A fragment did not finish. The message names fragment, node and reason."""

    def __init__(self, status: FragmentStatus, node: str) -> None:
        why = f": {status.error}" if status.error else ""
        super().__init__(f"fragment {status.fragment} at {node} {status.state}{why}")
        self.cause = status.cause


class QueryLost(Exception):
    """The query can neither continue nor start over; the message names the loss."""


class NodeUnreachable(Exception):
    """A node does not answer, and the policy is to fail; the message names it."""
