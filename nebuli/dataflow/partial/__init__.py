"""Partially stateful dataflow: a graph whose state has the keys that were read, and gets others when they are.

A *key* of a place is *missing* or *present*, and present without rows is not missing. A read of a missing key sends an
*upquery* up the graph; its *response* comes down the same edges as changes do, through the same operators, and fills
the key at each place on its way that has asked for it. A change of a missing key is dropped and asks for nothing. Any
key may be *evicted* at any time.

*Places* are where rows are found by columns: a view, each input of a join (by the join's columns), an aggregate or a
distinct (by any of the columns that it groups by, for which all groups of a key are present or none), and a base, which
has everything. A place has one index: lookups by other columns get their own place, which is filled separately.

A *path* leads down from a place to one that it fills, with no other between that could answer for these columns. So
paths are lines: one for each place, and for a union, where responses are merged before they continue, one for each
input. On its way a path may pass joins that find rows by other columns than the path does: it is *foreign* there.

An operator may be in *shards*: a sharder gives each row to one of them, by the hash of some columns, and a merger puts
what they give together again. If the columns that it is asked by have all of these, a key's shard is known: that one is
asked, and its answer passes the merger at once (an upquery is *narrow* there). If not, all are asked, as a union asks
its inputs. Paths lead to one shard each: a response goes to the shard that has asked, and to no other.

Invariants, in whatever order nodes take their messages:

1. At rest every key of every place is missing, or its rows are those that all that was written makes.
2. A change of a missing key has no effect. If the key is missing that it is dropped for, and others below are
   found by another one, an eviction of theirs continues in its place: later their staleness could not be detected.
3. A response equals what its edge has sent so far for its keys: it is made in one step of its source, and edges keep
   their order. A union has passed on before the rows that it adds up, and a join has taken in before the rows that it
   joins. Where a join lacks something of a response, it throws it away rather than to wait with it, and has it sent
   again.
4. A key that is present below is present above on all paths to it, and at joins that they pass the join keys of all its
   rows are present at all inputs; or an eviction of it is on its way. So evictions name everything that depends on what
   goes: of a join key, the keys below that the rows of any input have that go with it.

One base may reach a join, or a union, by two edges. Each edge is a stream of its own, so none of this changes: what the
join has given at any moment is the join of what has come on one edge with what has come on the other, of which one may
be ahead. While messages are on their way, a view of it may thus show rows that never were in one state of the base: an
old row with its successor. It is right once all has arrived, as each change of either edge meets each of the other's
once; and a response has the same rows as the view would have, had it had the key all along.

A place that cannot be traced to columns above is *full*, as are all above it (``placement.partial``): it gets every
change from the beginning and is never evicted. An outer join asks an input whose rows are all given. Nothing here
waits, reads a clock or sends anything: ``PartialGraph`` has the queues between the nodes, and the owner of the graph
makes its moves.

A base that is asked by other columns than before gets an index of them bit by bit, between other moves. Until it has
all rows, those that it lacks are scanned: so a view can be read as soon as it is there.
"""

from nebuli.dataflow.partial.budget import Budget, Pick, ViewBudget, at_random, least_recently_used
from nebuli.dataflow.partial.partial_graph import Build, Down, Move, PartialGraph, Reading, Up
from nebuli.dataflow.partial.traffic import (
    Ask,
    Data,
    Eviction,
    Filled,
    Response,
    Send,
    Upquery,
)
from placement.partial.places import Edge, Path, Place
from placement.partial.provenance import PartialPlan, planned
from placement.plan import PartialNode
from placement.view_nodes import Base, Output, Stream, View

__all__ = [
    "Ask",
    "Base",
    "Budget",
    "Build",
    "Data",
    "Down",
    "Edge",
    "Eviction",
    "Filled",
    "Move",
    "Output",
    "PartialGraph",
    "PartialNode",
    "PartialPlan",
    "Path",
    "Pick",
    "Place",
    "Reading",
    "Response",
    "Send",
    "Stream",
    "Up",
    "Upquery",
    "View",
    "ViewBudget",
    "at_random",
    "least_recently_used",
    "planned",
]
