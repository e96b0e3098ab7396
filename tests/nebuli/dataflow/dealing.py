"""Rows for the inputs of members, dealt out at random, and what comes out of all of them."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any

import pyarrow as pa

from nebuli.dataflow import SteppedCircuit
from placement import SteppedPlan
from tests.nebuli.dataflow.windowed import EPOCH
from tests.support.stepping import run_alone

Row = tuple[Any, ...]
Rows = Counter[Row]
Change = list[tuple[Row, int]]
"""Rows with weights, some of which may be the same."""


def spelled(value: Any) -> Any:
    """A value that equals those that are equal to it in SQL's grouping."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    return value


def spelled_row(row: Iterable[Any]) -> Row:
    return tuple(map(spelled, row))


def zset_of(change: Change, names: Sequence[str], schema: pa.Schema) -> pa.RecordBatch:
    """The columns of rows that are in a schema, and the weight; of times rows have seconds after ``EPOCH``."""
    columns = []
    for field in list(schema)[:-1]:
        values = [row[names.index(field.name)] for row, _ in change]
        if pa.types.is_timestamp(field.type):
            values = [None if value is None else EPOCH + dt.timedelta(seconds=value) for value in values]
        columns.append(pa.array(values, field.type))
    return pa.record_batch([*columns, pa.array([weight for _, weight in change], pa.int64())], schema=schema)


def rows_of(batch: pa.RecordBatch) -> Rows:
    """A Z-set, in which every row stands once."""
    *columns, weights = (column.to_pylist() for column in batch.columns)
    rows = [spelled_row(row) for row in zip(*columns, strict=True)]
    assert len(rows) == len(set(rows))
    assert 0 not in weights
    return Counter(dict(zip(rows, weights, strict=True)))


class Members:
    """All members of a plan; what they are given is dealt out at random."""

    def __init__(self, plan: SteppedPlan, seed: int, spread: Sequence[str]) -> None:
        self.plan = plan
        self.random = Random(seed)
        self._spread = spread
        self._names = {4: "kgxn", 3: "tkx"}
        self.circuits = [SteppedCircuit(plan, member) for member in range(plan.members)]

    def step(self, step: Mapping[str, Change], *, ended: bool = False) -> dict[str, pa.RecordBatch]:
        """The outputs, each as the one member gives it that has rows of it, if one has."""
        inputs: list[dict[str, list[pa.RecordBatch]]] = [{} for _ in self.circuits]
        for source, change in step.items():
            if source in self.circuits[0].inputs:
                self._deal(source, change, inputs)
        outputs = run_alone(self.circuits, inputs, ended=ended)
        given = {}
        for name in outputs[0]:
            some = [each[name] for each in outputs if each[name].num_rows] or [outputs[0][name]]
            assert len(some) == 1
            given[name] = some[0]
        return given

    def _deal(self, source: str, change: Change, inputs: Sequence[dict[str, list[pa.RecordBatch]]]) -> None:
        schema = self.circuits[0].inputs[source]
        names = self._names[len(change[0][0])] if change else ""
        left = list(change)
        self.random.shuffle(left)
        while left:
            size = self.random.randint(1, len(left))
            batch, left = zset_of(left[:size], names, schema), left[size:]
            to = self.random.randrange(len(inputs)) if source in self._spread else self.plan.homes[source]
            inputs[to].setdefault(source, []).append(batch)
