"""Rows for the inputs of members, dealt out at random, and what comes out of all of them."""

from __future__ import annotations

import datetime as dt
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.steps.origins import SourceRows
from nebuli.dataflow.steps.saved_runs import encoded
from placement import SteppedPlan
from tests.nebuli.dataflow.windowed import EPOCH
from tests.support.stepping import run_alone

if TYPE_CHECKING:
    from nebuli.dataflow.steps.resharding import Counting

Row = tuple[Any, ...]
Rows = Counter[Row]
Change = list[tuple[Row, int]]
"""Rows with weights, some of which may be the same."""
_NO_SOURCES: Mapping[str, Mapping[str, tuple[Change, bool]]] = MappingProxyType({})


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
    """All members of a plan; what they are given is dealt out at random.

    ``then`` are plans of the same query, the first for the second step, and so on; the last stays. Before each of these
    steps the state goes from the members that there were to those that there are then.
    """

    def __init__(
        self, plan: SteppedPlan, seed: int, spread: Sequence[str], then: Iterable[SteppedPlan] = ()
    ) -> None:
        self.plan = plan
        self._then = list(then)
        self.random = Random(seed)
        self._spread = spread
        self._names = {4: "kgxn", 3: "tkx"}
        self.circuits = [SteppedCircuit(self.plan, member) for member in range(self.plan.members)]
        self._has_begun = False
        self._begin_to_give()

    def _begin_to_give(self) -> None:
        """Some of what there is goes to those that follow a step early."""
        following = self._then[0] if self._then else self.plan
        self._sharings = [circuit.sharing(following) for circuit in self.circuits]
        self._given: list[dict[str, dict[bytes, bytes]]] = [{} for _ in range(following.members)]
        self._give(0.5)

    def _give(self, likely: float) -> None:
        for sharing in self._sharings:
            for node, run in sharing.uncut():
                for to, given in sharing.cut(node, run) if self.random.random() < likely else ():
                    table = self._given[to].setdefault(given.operator, {})
                    assert given.run.name not in table
                    table[given.run.name] = bytes(encoded(given.run))

    def scale(self, plan: SteppedPlan) -> None:
        """As many members as a plan says have the state: of what they were given, what counts now, and what is new."""
        self._give(1.0)
        counting = [sharing.counting() for sharing in self._sharings]
        numbers = [circuit.numbers for circuit in self.circuits]
        self.plan, self.circuits = plan, []
        for member, given in enumerate(self._given):
            circuit = SteppedCircuit(plan, member)
            self.circuits.append(circuit)
            tables = circuit.put_together([each[member] for each in counting], numbers)
            circuit.load(
                {
                    table: {key: bytes(each()) for key, each in manifest.items()}
                    | {
                        name: given[table][name]
                        for name in _counts([each[member] for each in counting], table)
                    }
                    for table, manifest in tables.items()
                }
            )

    def step(
        self,
        step: Mapping[str, Change],
        sources: Mapping[str, Mapping[str, tuple[Change, bool]]] = _NO_SOURCES,
        *,
        ended: bool = False,
    ) -> dict[str, pa.RecordBatch]:
        """The outputs, each as the one member gives it that has rows of it, if one has.

        ``sources`` of an input are at one member each, in turn: what each gives, and whether it has ended.
        """
        if self._has_begun and self._then:
            self.scale(self._then.pop(0))
            self._begin_to_give()
        self._has_begun = True
        inputs: list[dict[str, list[pa.RecordBatch]]] = [{} for _ in self.circuits]
        for source, change in step.items():
            if source in self.circuits[0].inputs:
                self._deal(source, change, inputs)
        outputs = run_alone(self.circuits, inputs, self._dealt(sources), ended=ended)
        given = {}
        for name in outputs[0]:
            some = [each[name] for each in outputs if each[name].num_rows] or [outputs[0][name]]
            assert len(some) == 1
            given[name] = some[0]
        return given

    def _dealt(
        self, sources: Mapping[str, Mapping[str, tuple[Change, bool]]]
    ) -> list[dict[str, dict[str, SourceRows]]]:
        own: list[dict[str, dict[str, SourceRows]]] = [{} for _ in self.circuits]
        for input_, given in sources.items():
            for number, (name, (change, ended)) in enumerate(given.items()):
                batches: list[dict[str, list[pa.RecordBatch]]] = [{} for _ in self.circuits]
                self._deal(input_, change, batches)
                rows = [batch for each in batches for batch in each.get(input_, ())]
                member = number % len(own) if input_ in self._spread else self.plan.homes[input_]
                own[member].setdefault(input_, {})[name] = SourceRows(rows, awaited=not ended)
        return own

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


def _counts(counting: Sequence[Counting], table: str) -> list[bytes]:
    """The names of what counts of an operator's state."""
    return [
        name.encode()
        for each in counting
        for state in each.get(table, ())
        for parts in state
        for name, _ in parts
    ]
