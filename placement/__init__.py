"""Query plans and where they run.

``load_query`` reads a query, ``check`` binds it to a topology, ``place`` gives each operator a node (``place_bound``
where the query is checked already, ``place_bottom_up`` by the rule alone, ``place_exactly`` for the least traffic and
what it costs), ``decompose`` cuts the placed plan into fragments, and ``with_deployment`` makes their channels those of
one deployment. ``planned_of`` a fragment is the plan of its query's state of views, and ``kept_by`` describes it in
words. ``kept_in_steps`` does so for a query in steps. ``check_stepped`` is ``check`` for a query that runs in steps,
and ``distribute`` determines where its rows change members.

Names are imported when they are first used: most users of plans place none.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from placement.checking.binding import BoundPlan as BoundPlan
    from placement.checking.binding import check as check
    from placement.checking.binding import check_stepped as check_stepped
    from placement.errors import InvalidQuery as InvalidQuery
    from placement.errors import MultipleReaders as MultipleReaders
    from placement.errors import MultipleSinks as MultipleSinks
    from placement.errors import NoCapacity as NoCapacity
    from placement.errors import NoCommonAncestor as NoCommonAncestor
    from placement.errors import NoPath as NoPath
    from placement.errors import NotOnEngine as NotOnEngine
    from placement.errors import PlacementError as PlacementError
    from placement.errors import QueryError as QueryError
    from placement.errors import RetractingPlan as RetractingPlan
    from placement.errors import UnfitNodes as UnfitNodes
    from placement.errors import UnknownSink as UnknownSink
    from placement.errors import UnknownSource as UnknownSource
    from placement.fragments.decomposition import Channel as Channel
    from placement.fragments.decomposition import Decomposition as Decomposition
    from placement.fragments.decomposition import decompose as decompose
    from placement.fragments.decomposition import with_deployment as with_deployment
    from placement.partial.kept_rows import Kept as Kept
    from placement.partial.kept_rows import kept_by as kept_by
    from placement.partial.kept_rows import kept_in_steps as kept_in_steps
    from placement.partial.node_plan import planned_of as planned_of
    from placement.partial.provenance import PartialPlan as PartialPlan
    from placement.plan import Fragment as Fragment
    from placement.plan import Query as Query
    from placement.reading.reader import load_query as load_query
    from placement.reading.reader import parse_query as parse_query
    from placement.statements.statement import Statement as Statement
    from placement.statements.statement import parse_statement as parse_statement
    from placement.statements.statement import read_statement as read_statement
    from placement.stepped_plan import SteppedPlan as SteppedPlan
    from placement.steps.distribution import distribute as distribute
    from placement.strategies.bottom_up import Placement as Placement
    from placement.strategies.bottom_up import place_bottom_up as place_bottom_up
    from placement.strategies.exact import Exact as Exact
    from placement.strategies.exact import place_exactly as place_exactly
    from placement.strategies.selection import StrategyName as StrategyName
    from placement.strategies.selection import place as place
    from placement.strategies.selection import place_bound as place_bound

_HOMES = {
    "BoundPlan": "placement.checking.binding",
    "Channel": "placement.fragments.decomposition",
    "Decomposition": "placement.fragments.decomposition",
    "Exact": "placement.strategies.exact",
    "Fragment": "placement.plan",
    "InvalidQuery": "placement.errors",
    "Kept": "placement.partial.kept_rows",
    "MultipleReaders": "placement.errors",
    "MultipleSinks": "placement.errors",
    "NoCapacity": "placement.errors",
    "NoCommonAncestor": "placement.errors",
    "NoPath": "placement.errors",
    "NotOnEngine": "placement.errors",
    "PartialPlan": "placement.partial.provenance",
    "Placement": "placement.strategies.bottom_up",
    "PlacementError": "placement.errors",
    "Query": "placement.plan",
    "QueryError": "placement.errors",
    "RetractingPlan": "placement.errors",
    "Statement": "placement.statements.statement",
    "SteppedPlan": "placement.stepped_plan",
    "StrategyName": "placement.strategies.selection",
    "UnfitNodes": "placement.errors",
    "UnknownSink": "placement.errors",
    "UnknownSource": "placement.errors",
    "check": "placement.checking.binding",
    "check_stepped": "placement.checking.binding",
    "decompose": "placement.fragments.decomposition",
    "distribute": "placement.steps.distribution",
    "kept_by": "placement.partial.kept_rows",
    "kept_in_steps": "placement.partial.kept_rows",
    "load_query": "placement.reading.reader",
    "parse_query": "placement.reading.reader",
    "parse_statement": "placement.statements.statement",
    "read_statement": "placement.statements.statement",
    "place": "placement.strategies.selection",
    "place_bottom_up": "placement.strategies.bottom_up",
    "place_bound": "placement.strategies.selection",
    "place_exactly": "placement.strategies.exact",
    "planned_of": "placement.partial.node_plan",
    "with_deployment": "placement.fragments.decomposition",
}
__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_HOMES[name]), name)
    return value
