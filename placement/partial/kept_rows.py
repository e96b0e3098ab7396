"""How operators keep rows, of a query with views and of one in steps, in words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from placement.checking.schemas import InnerOperator, output_schema
from placement.graph import carried
from placement.partial.provenance import children_of, grouped_by, in_words
from placement.partial.sharding import shard_of
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    JoinOperator,
    MergerOperator,
    UnionOperator,
    ViewOperator,
)
from placement.stepped_plan import InputOperator
from placement.view_nodes import Base

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from placement.partial.places import Place
    from placement.partial.provenance import PartialPlan
    from placement.stepped_plan import SteppedPlan
    from topology import Schema

_IN_STEPS = "the query runs in steps"


@dataclass(frozen=True, slots=True)
class Kept:
    """The state of an operator, for a join that of ``input``, found by the columns ``by``; and ``why``.

    A ``base`` has all rows of a source, ``full`` is what is kept from the beginning and never given up, and of what is
    ``partial`` there are the keys that were read.
    """

    operator: str
    input: str | None
    by: tuple[str, ...]
    state: Literal["base", "partial", "full"]
    why: str


def kept_by(plan: PartialPlan) -> list[Kept]:
    """All that is kept, inputs before what reads them; of a base a row for each index, of shards one for all."""
    return [kept for id_ in plan.nodes if shard_of(id_) in (None, 0) for kept in _kept(id_, plan)]


def kept_in_steps(plan: SteppedPlan) -> list[Kept]:
    """The same of a query in steps, before it is divided over members: there everything is full."""
    schemas: dict[str, Schema] = {}
    found = []
    for operator in plan.operators:
        if isinstance(operator, InputOperator):
            schemas[operator.id] = operator.columns
        elif isinstance(operator, InnerOperator):
            schemas[operator.id] = output_schema(operator, [schemas[each] for each in operator.children], [])
        match operator:
            case ViewOperator(id=id_, key=key):
                found.append(Kept(id_, None, key, "full", _IN_STEPS))
            case AggregateOperator(id=id_) | DistinctOperator(id=id_):
                found.append(Kept(id_, None, grouped_by(operator, schemas[id_]), "full", _IN_STEPS))
            case JoinOperator(id=id_, on=on):
                found += [Kept(id_, carried(each), on, "full", _IN_STEPS) for each in operator.children]
    return found


def _kept(id_: str, plan: PartialPlan) -> Iterator[Kept]:
    node, named = plan.nodes[id_], carried(id_)
    if isinstance(node, Base):
        yield from _indices(node, plan)
        return
    each = f"in each of {_count(named, plan)} shards, " if shard_of(id_) is not None else ""
    for place in sorted(plan.places(id_), key=lambda each: each.port or 0):
        input_ = None if place.port is None else carried(children_of(node)[place.port])
        if place in plan.full:
            yield Kept(named, input_, place.columns, "full", f"{each}{plan.full[place]}")
        elif place in plan.partial:
            why = f"{each}filled from {' and '.join(_sources(place, plan))}"
            yield Kept(named, input_, place.columns, "partial", why)


def _indices(base: Base, plan: PartialPlan) -> Iterator[Kept]:
    asked: dict[tuple[str, ...], list[str]] = {}
    for path in plan.paths:
        if path.source.node == base.id:
            asked.setdefault(path.source.columns, []).append(in_words(path.target, plan.nodes))
    for columns, targets in asked.items():
        filled = " and ".join(dict.fromkeys(targets))
        yield Kept(base.id, None, columns, "base", f"all rows, with an index that fills {filled}")
    if not asked:
        yield Kept(base.id, None, (), "base", "all rows; no operator requests them again")


def _sources(place: Place, plan: PartialPlan) -> Iterator[str]:
    """Where the rows come from, and by which columns there.

    For a union, which keeps none, from all of its inputs; for a merger from one of the shards, or all.
    """
    for path in plan.paths:
        if path.target != place:
            continue
        source = plan.nodes[path.source.node]
        if isinstance(source, UnionOperator):
            yield from _sources(path.source, plan)
        elif isinstance(source, MergerOperator):
            yield f"{next(_sources(path.source, plan))}, {_asked(source, path.source)}"
        else:
            named = _named(dict(zip(path.columns[0], path.columns[-1], strict=True)))
            yield f"{carried(path.source.node)} by {named}"


def _asked(merger: MergerOperator, place: Place) -> str:
    """Which shards are asked for a key, and why."""
    count, by = len(merger.inputs), ", ".join(merger.by)
    if not by:
        return f"in all {count} shards, because no key determines the shard of a row"
    if set(merger.by) <= set(place.columns):
        return f"in one of {count} shards, selected by {by}"
    return f"in all {count} shards, because the shards are divided by {by}"


def _count(operator: str, plan: PartialPlan) -> int:
    return sum(shard_of(id_) is not None and carried(id_) == operator for id_ in plan.nodes)


def _named(columns: Mapping[str, str]) -> str:
    """Columns by their names at the source; followed by the name here if it is another."""
    return ", ".join(there if there == here else f"{there} (here {here})" for there, here in columns.items())
