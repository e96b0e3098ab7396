"""Query plans and where they run.

``load_query`` reads a query, ``check`` binds it to a topology, ``place`` gives each operator a node (``place_bound``
where the query is checked already, ``place_exactly`` for the least traffic), ``decompose`` cuts the placed plan into
fragments, and ``with_deployment`` makes their channels those of one deployment.
"""

from placement.binding import BoundPlan, check
from placement.bottom_up import Placement, place, place_bound
from placement.decomposition import Channel, Decomposition, decompose, with_deployment
from placement.errors import (
    InvalidQuery,
    MultipleSinks,
    NoCapacity,
    NoCommonAncestor,
    NoPath,
    NotOnEngine,
    PlacementError,
    QueryError,
    RetractingPlan,
    UnknownSink,
    UnknownSource,
)
from placement.exact import Exact, place_exactly
from placement.plan import Fragment, Query
from placement.reader import load_query, parse_query

__all__ = [
    "BoundPlan",
    "Channel",
    "Decomposition",
    "Exact",
    "Fragment",
    "InvalidQuery",
    "MultipleSinks",
    "NoCapacity",
    "NoCommonAncestor",
    "NoPath",
    "NotOnEngine",
    "Placement",
    "PlacementError",
    "Query",
    "QueryError",
    "RetractingPlan",
    "UnknownSink",
    "UnknownSource",
    "check",
    "decompose",
    "load_query",
    "parse_query",
    "place",
    "place_bound",
    "place_exactly",
    "with_deployment",
]
