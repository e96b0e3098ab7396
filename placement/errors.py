"""Errors of a query with a topology.

::

    PlacementError
    ├── QueryError               the query itself is wrong
    │   └── InvalidQuery           as read or as checked: holds every mistake, with file, line and column
    │       ├── MultipleSinks        more than one sink or unread view, where the query is to run free
    │       ├── MultipleReaders      an operator that several read, where the query is to run free
    │       ├── UnknownSource        a logical source that the topology lacks, or no node provides
    │       ├── UnknownSink          a sink that no node has
    │       └── RetractingPlan       an ``append`` sink below operators that retract rows
    ├── NotOnEngine              a node's engine cannot run what is placed there
    ├── NoPath                   a source's node cannot reach the sink's node
    ├── NoCommonAncestor         the inputs of an operator can meet at no node
    ├── NoCapacity               no path on the way has room
    └── UnfitNodes               nodes that make no plan of partial state

``placement.sql.expressions`` adds ``ExpressionError`` below ``QueryError``. Every message names the operator, and
the nodes where there are some.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from topology import Mistake


class PlacementError(Exception):
    """A query that cannot be planned. The message is a sentence for the author of the query."""


class QueryError(PlacementError):
    """The query itself is wrong."""


class InvalidQuery(QueryError):
    """One or more mistakes in a query; ``mistakes`` holds all that were found, in file order."""

    def __init__(self, mistakes: Iterable[Mistake]) -> None:
        self.mistakes = tuple(mistakes)
        super().__init__("\n".join(map(str, self.mistakes)))


class MultipleSinks(InvalidQuery):
    """A free query has more than one sink, or unread view; all its data must flow to one root."""


class MultipleReaders(InvalidQuery):
    """A free query has an operator that several others read."""


class UnknownSource(InvalidQuery):
    """A query names a logical source that the topology does not have, or that no node provides."""


class UnknownSink(InvalidQuery):
    """A query names a sink that no node of the topology has."""


class RetractingPlan(InvalidQuery):
    """A sink with mode ``append`` would have to retract rows."""


class NotOnEngine(PlacementError):
    """An operator at a node does not suit its engine; ``faults`` holds every reason, one per operator."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


class NoPath(PlacementError):
    """The links do not lead from an operator's node to the sink's node."""


class NoCommonAncestor(PlacementError):
    """No node is downstream of all inputs of an operator."""


class NoCapacity(PlacementError):
    """No path from an operator's input toward the sink has a free slot for it."""


class UnfitNodes(PlacementError):
    """Nodes of a plan of partial state that cannot work on their inputs; ``node`` is the first, ``what`` is wrong."""

    def __init__(self, what: str, node: str) -> None:
        self.what, self.node = what, node
        super().__init__(f"operator {node}: {what}")
