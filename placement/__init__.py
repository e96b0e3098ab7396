"""Query plans and where they run.

``load_query`` reads a query, ``check`` binds it to a topology, ``place`` gives each operator a node (``place_bound``
where the query is checked already, ``place_bottom_up`` by the rule alone, ``place_exactly`` for the least traffic and
what it costs), ``decompose`` cuts the placed plan into fragments, and ``with_deployment`` makes their channels those of
one deployment.

What a name stands for is imported when it is first used: most of what looks at plans places none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placement.binding import BoundPlan as BoundPlan
    from placement.binding import check as check
    from placement.bottom_up import Placement as Placement
    from placement.bottom_up import place_bottom_up as place_bottom_up
    from placement.decomposition import Channel as Channel
    from placement.decomposition import Decomposition as Decomposition
    from placement.decomposition import decompose as decompose
    from placement.decomposition import with_deployment as with_deployment
    from placement.errors import InvalidQuery as InvalidQuery
    from placement.errors import MultipleSinks as MultipleSinks
    from placement.errors import NoCapacity as NoCapacity
    from placement.errors import NoCommonAncestor as NoCommonAncestor
    from placement.errors import NoPath as NoPath
    from placement.errors import NotOnEngine as NotOnEngine
    from placement.errors import PlacementError as PlacementError
    from placement.errors import QueryError as QueryError
    from placement.errors import RetractingPlan as RetractingPlan
    from placement.errors import UnknownSink as UnknownSink
    from placement.errors import UnknownSource as UnknownSource
    from placement.exact import Exact as Exact
    from placement.exact import place_exactly as place_exactly
    from placement.plan import Fragment as Fragment
    from placement.plan import Query as Query
    from placement.reader import load_query as load_query
    from placement.reader import parse_query as parse_query
    from placement.strategies import StrategyName as StrategyName
    from placement.strategies import place as place
    from placement.strategies import place_bound as place_bound

_HOMES = {
    "BoundPlan": "placement.binding",
    "Channel": "placement.decomposition",
    "Decomposition": "placement.decomposition",
    "Exact": "placement.exact",
    "Fragment": "placement.plan",
    "InvalidQuery": "placement.errors",
    "MultipleSinks": "placement.errors",
    "NoCapacity": "placement.errors",
    "NoCommonAncestor": "placement.errors",
    "NoPath": "placement.errors",
    "NotOnEngine": "placement.errors",
    "Placement": "placement.bottom_up",
    "PlacementError": "placement.errors",
    "Query": "placement.plan",
    "QueryError": "placement.errors",
    "RetractingPlan": "placement.errors",
    "StrategyName": "placement.strategies",
    "UnknownSink": "placement.errors",
    "UnknownSource": "placement.errors",
    "check": "placement.binding",
    "decompose": "placement.decomposition",
    "load_query": "placement.reader",
    "parse_query": "placement.reader",
    "place": "placement.strategies",
    "place_bottom_up": "placement.bottom_up",
    "place_bound": "placement.strategies",
    "place_exactly": "placement.exact",
    "with_deployment": "placement.decomposition",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
