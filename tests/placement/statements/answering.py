"""What the operators of a statement give of rows: free, and in steps with retractions."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa

from nebuli.dataflow import SteppedCircuit, zset
from placement import Query, check, check_stepped, distribute
from placement.plan import BoundSource
from tests.nebuli.dataflow.driven import Driven
from tests.support.stepping import run_alone
from topology import Topology

Tables = Mapping[str, pa.RecordBatch]
Answer = tuple[list[str], list[tuple[Any, ...]]]
"""The names of the columns, and the rows."""


def free(query: Query, topology: Topology, tables: Tables, random: Random) -> Answer:
    """What remains of all that the operators give, whichever row comes first."""
    plan = check(query, topology)
    circuit = Driven(
        [*plan.operators.values()],
        watermarks=[*plan.watermarks.values()],
        closings=[*plan.closings.values()],
        only_growing=plan.only_growing,
    )
    sources = {key: each for key, each in plan.operators.items() if isinstance(each, BoundSource)}
    rows = {key: _narrowed(tables[each.logical], each.columns) for key, each in sources.items()}
    waiting = [(key, number) for key, each in rows.items() for number in range(each.num_rows)]
    random.shuffle(waiting)
    given = [zset.empty(circuit.schema)]
    for key, number in waiting:
        given += circuit.push(key, zset.insertions(rows[key].slice(number, 1)))
    for key in sources:
        given += circuit.end(key)
    return _answer(zset.consolidate(given))


def in_steps(
    query: Query, topology: Topology, tables: Tables, random: Random, others: Tables, members: int = 1
) -> Answer:
    """What the steps add up to that insert all rows, and ``others``, which they take back later."""
    checked = check_stepped(query, topology)
    plan = distribute(checked, members, sorted(each.id for each in checked.inputs))
    circuits = [SteppedCircuit(plan, member) for member in range(members)]
    count = random.randint(3, 6)
    steps: list[list[dict[str, list[pa.RecordBatch]]]] = [[{} for _ in circuits] for _ in range(count)]

    def put(step: int, name: str, rows: pa.RecordBatch, weight: int) -> None:
        weighted = zset.with_weights(rows, np.full(rows.num_rows, weight, np.int64))
        steps[step][random.randrange(members)].setdefault(name, []).append(weighted)

    for each in plan.inputs:
        own = _narrowed(tables[each.logical], each.columns)
        for number in range(own.num_rows):
            put(random.randrange(count), each.id, own.slice(number, 1), 1)
        added = _narrowed(others[each.logical], each.columns)
        for number in range(added.num_rows):
            first = random.randrange(count - 1)
            put(first, each.id, added.slice(number, 1), 1)
            put(random.randrange(first + 1, count), each.id, added.slice(number, 1), -1)
    (name,) = circuits[0].outputs
    given = [zset.empty(circuits[0].outputs[name])]
    for number, inputs in enumerate(steps):
        outputs = run_alone(circuits, inputs, ended=number == count - 1)
        given += [each[name] for each in outputs]
    return _answer(zset.consolidate(given))


def _narrowed(rows: pa.RecordBatch, columns: Any) -> pa.RecordBatch:
    return rows.select([each.name for each in columns])


def _answer(left: pa.RecordBatch) -> Answer:
    rows = zip(*(column.to_pylist() for column in left.columns), strict=True)
    return left.schema.names[:-1], [row[:-1] for row in rows for _ in range(row[-1])]
