"""What nodes give out, from scratch and in plain Python: bags of rows are counters of tuples."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pyarrow as pa

from nebuli.dataflow.partial import Base, PartialNode, PartialPlan, View
from nebuli.dataflow.partial.shard_nodes import shards_of
from nebuli.dataflow.types import arrow_schema
from placement.partial.provenance import children_of
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    ProjectOperator,
    SharderOperator,
    UnionOperator,
)

Row = tuple[Any, ...]
Bag = Counter[Row]
Named = dict[str, Any]

PREDICATES = {
    "a > 0": lambda r: r["a"] is not None and r["a"] > 0,
    "b <> 1": lambda r: r["b"] is not None and r["b"] != 1,
    "c = 0 OR a = 1": lambda r: r["c"] == 0 or r["a"] == 1,
}
AGGREGATES = {
    "count(*)": len,
    "count(c)": lambda values: sum(value is not None for value in values),
    "sum(c)": lambda values: sum(values) if (values := _known(values)) else None,
    "sum(b)": lambda values: sum(values) if (values := _known(values)) else None,
    "max(c)": lambda values: max(_known(values), default=None),
    "min(c)": lambda values: min(_known(values), default=None),
    "count(DISTINCT c)": lambda values: len(set(_known(values))),
}


def _known(values: Sequence[Any]) -> list[Any]:
    return [value for value in values if value is not None]


def contents(batch: pa.RecordBatch) -> Bag:
    """The rows of a Z-set."""
    bag: Bag = Counter()
    for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        bag[tuple(row)] += weight
    return without_zeros(bag)


def without_zeros(bag: Bag) -> Bag:
    return Counter({row: weight for row, weight in bag.items() if weight})


def plus(bag: Bag, other: Bag, sign: int = 1) -> Bag:
    total = Counter(bag)
    for row, weight in other.items():
        total[row] += sign * weight
    return without_zeros(total)


def evaluate(plan: PartialPlan, id_: str, inputs: Sequence[Bag]) -> Bag:
    """What a node makes of all the rows of its inputs."""
    node = plan.nodes[id_]
    names = [[column.name for column in plan.schemas[child]] for child in children_of(node)]
    match node:
        case Base() | View() | SharderOperator():
            return Counter(inputs[0])
        case FilterOperator():
            keep = PREDICATES[node.predicate]
            return Counter({row: n for row, n in inputs[0].items() if keep(_named(names[0], row))})
        case ProjectOperator():
            return _projected(node, names[0], inputs[0])
        case UnionOperator() | MergerOperator():
            total: Bag = Counter()
            for each in inputs:
                total = plus(total, each)
            return total
        case JoinOperator():
            return _joined(node, names, inputs)
        case DistinctOperator():
            return Counter(dict.fromkeys(inputs[0], 1))
        case AggregateOperator():
            return _aggregated(node, names[0], inputs[0])
    raise AssertionError(node)


def from_scratch(plan: PartialPlan, bases: dict[str, Bag]) -> dict[str, Bag]:
    """What every node gives out of these rows."""
    found: dict[str, Bag] = {}
    for id_, node in plan.nodes.items():
        inputs = [given_to(plan, child, id_, found[child]) for child in children_of(node)]
        found[id_] = evaluate(plan, id_, [bases[id_]] if isinstance(node, Base) else inputs)
    return found


def given_to(plan: PartialPlan, producer: str, consumer: str, rows: Bag) -> Bag:
    """Those of the rows that a node gives out which go to a reader: of a sharder those of the shard that it is.

    Which shard a row belongs to is the code's to say; that it is one, and the same for all rows with a key, is not.
    """
    node = plan.nodes[producer]
    if not isinstance(node, SharderOperator) or not rows:
        return rows
    schema = arrow_schema(plan.schemas[producer])
    places = [schema.get_field_index(name) for name in node.by]
    columns = [pa.array([row[place] for row in rows], schema.field(place).type) for place in places]
    numbers = shards_of(columns, len(rows), len(node.shards))
    own = node.shards.index(consumer)
    return Counter({row: rows[row] for row, number in zip(rows, numbers, strict=True) if number == own})


def _named(names: Sequence[str], row: Row) -> Named:
    return dict(zip(names, row, strict=True))


def _projected(node: ProjectOperator, names: Sequence[str], rows: Bag) -> Bag:
    out: Bag = Counter()
    for row, weight in rows.items():
        named = _named(names, row)
        out[tuple(_value(sql, named) for sql in node.columns.values())] += weight
    return out


def _value(sql: str, row: Named) -> Any:
    name, *added = sql.split(" + ")
    value = row[name.strip('"')]
    return value + int(added[0]) if added and value is not None else value


def _joined(node: JoinOperator, names: Sequence[Sequence[str]], inputs: Sequence[Bag]) -> Bag:
    """The keys, then the other columns of each input; of an outer join also rows that nothing matches."""
    keyed = [_by_key(rows, names[port], node.on) for port, rows in enumerate(inputs)]
    found = {key: bag for key, bag in keyed[0].items() if None not in key}
    for mine in keyed[1:]:
        both: dict[Row, Bag] = {}
        for key in found.keys() & mine.keys():
            both[key] = Counter()
            for (left, weight), (right, times) in product(found[key].items(), mine[key].items()):
                both[key][left + right] += weight * times
        found = both
    result = Counter({key + rest: weight for key, bag in found.items() for rest, weight in bag.items()})
    for port in {"inner": [], "left": [0], "right": [1], "full": [0, 1]}[node.how]:
        nulls = (None,) * (len(names[1 - port]) - len(node.on))
        for key, bag in keyed[port].items():
            if None in key or key not in keyed[1 - port]:
                for rest, weight in bag.items():
                    result[key + (rest + nulls if port == 0 else nulls + rest)] += weight
    return result


def _by_key(rows: Bag, names: Sequence[str], on: Sequence[str]) -> dict[Row, Bag]:
    """The other columns of rows, by those of the key."""
    found: dict[Row, Bag] = {}
    for row, weight in rows.items():
        named = _named(names, row)
        key = tuple(named[name] for name in on)
        found.setdefault(key, Counter())[tuple(named[name] for name in names if name not in on)] += weight
    return found


def _aggregated(node: AggregateOperator, names: Sequence[str], rows: Bag) -> Bag:
    groups: dict[Row, list[Named]] = {} if node.by else {(): []}
    for row, weight in rows.items():
        named = _named(names, row)
        groups.setdefault(tuple(named[name] for name in node.by), []).extend([named] * weight)
    out: Bag = Counter()
    for key, members in groups.items():
        results = []
        for sql in node.aggregates.values():
            argument = sql.split("(")[1].rstrip(")").split()[-1]
            results.append(AGGREGATES[sql]([each.get(argument, 1) for each in members]))
        out[key + tuple(results)] += 1
    return out


__all__ = ["Bag", "PartialNode", "Row", "contents", "evaluate", "from_scratch", "given_to", "plus"]
