"""Which engine computes what, and what may be given to Spark.

The operators at a node with ``engine: spark`` are Spark's; sources, sinks and bridges, which compute nothing, stay with
the worker. Spark's part of a query is a batch job where all its inputs end, and else runs in append mode: it never
retracts a row, and must not get retractions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.checking.event_time import begins_to_retract
from placement.errors import NotOnEngine
from placement.plan import (
    AggregateOperator,
    BoundSink,
    BoundSource,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    SharderOperator,
    SparkEngine,
    UnionOperator,
    ViewOperator,
    WindowOperator,
)
from placement.sql.expressions import parse, parse_aggregate
from placement.sql.typed_tree import Call
from placement.sql.typing_rules import UNSIGNED
from topology.schema import DataType as T

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from placement.plan import FragmentOperator
    from placement.sql.expressions import Expression
    from placement.sql.typed_tree import Node
    from placement.strategies.bottom_up import Placement
    from topology.schema import Schema

_POSSIBLE = "filter, project, union and an aggregate by windows can run on Spark with endless input"
_ENDS = (BoundSource, BoundSink, NetworkSource, NetworkSink, SharderOperator, MergerOperator)


class Engines:
    """The engines of a placed plan."""

    def __init__(self, placement: Placement) -> None:
        self._plan = placement.plan
        self._nodes = placement.nodes
        self._masters: Mapping[str, str] = placement.plan.spark_masters
        self._bounded: dict[str, bool] = {}
        self._views = [key for key, each in self._plan.operators.items() if isinstance(each, ViewOperator)]
        self._taking_back: dict[str, str] = {}
        """The source, aggregate or join that begins it, for an operator whose output retracts rows."""
        for key, operator in self._plan.operators.items():
            self._learn(key, operator)

    def of(self, node: str, operators: Iterable[FragmentOperator]) -> SparkEngine | None:
        """The engine of a fragment at ``node``; None: the worker's own."""
        master = self._masters.get(node)
        computing = [each for each in operators if not isinstance(each, _ENDS)]
        if master is None or not computing:
            return None
        return SparkEngine(master=master, bounded=self._bounded[computing[-1].id])

    def check(self) -> None:
        """Raise ``NotOnEngine`` with everything that Spark cannot do where it was placed."""
        faults = []
        for key, operator in self._plan.operators.items():
            where = f"{operator.type} {key} at {self._nodes[key]}"
            if self._on_spark(key, operator):
                faults += [
                    f"{where}, whose engine is spark: {fault}" for fault in self._faults(key, operator)
                ]
            elif isinstance(operator, WindowOperator) and (below := self._endless_on_spark(key)):
                faults.append(
                    f"{where}: the watermark of its time does not pass {below}, which Spark "
                    f"computes on endless input; set the engine of this node to spark too, or "
                    f"the engine of {below}'s node to embedded"
                )
        if faults:
            raise NotOnEngine(faults)

    def _on_spark(self, key: str, operator: FragmentOperator) -> bool:
        return self._nodes[key] in self._masters and not isinstance(operator, _ENDS)

    def _learn(self, key: str, operator: FragmentOperator) -> None:
        if isinstance(operator, BoundSource):
            self._bounded[key] = operator.physical.ends == "always"
            if operator.physical.retracts:
                self._taking_back[key] = key
            return
        self._bounded[key] = all(self._bounded[child] for child in operator.children)
        inherited = [self._taking_back[child] for child in operator.children if child in self._taking_back]
        begins = begins_to_retract(operator, self._plan.closings)
        closes = key in self._plan.closings and not isinstance(operator, JoinOperator)
        if closes or (begins and self._on_spark(key, operator)):
            return  # what it gives out, stays
        if begins:
            self._taking_back[key] = key
        elif inherited:
            self._taking_back[key] = inherited[0]

    def _faults(self, key: str, operator: FragmentOperator) -> Iterator[str]:
        if self._views:
            yield (
                f"the query has views ({', '.join(self._views)}), whose keys are filled through "
                f"the query's operators, but Spark cannot send rows again; set the engine of this "
                f"node to embedded"
            )
            return
        for child in operator.children:
            if child in self._taking_back and not self._on_spark(child, self._plan.operators[child]):
                begins = self._plan.operators[self._taking_back[child]]
                if isinstance(begins, BoundSource):
                    yield (
                        f"its input {child} retracts rows, because source {begins.id} follows "
                        f"{begins.physical.reads}, but Spark only accepts rows that are never "
                        f"retracted; read the source with follow: false, or set the engine of "
                        f"this node to embedded"
                    )
                    continue
                yield (
                    f"its input {child} retracts rows, because {begins.type} {begins.id} at "
                    f"{self._nodes[begins.id]} does, but Spark only accepts rows that are never "
                    f"retracted; set the engine of that {begins.type}'s node to spark too, or "
                    f"the engine of this node to embedded"
                )
        if not self._bounded[key]:
            yield from self._without_end(key, operator)
        inputs = [self._plan.schemas[child] for child in operator.children]
        yield from refusals(operator, inputs)

    def _without_end(self, key: str, operator: FragmentOperator) -> Iterator[str]:
        """Return the operators that Spark does not compute in append mode.

        All but single rows, and windows that its watermark closes.
        """
        match operator:
            case FilterOperator() | ProjectOperator() | UnionOperator():
                return
            case WindowOperator():
                yield from self._faults_of_window(key, operator)
                return
            case AggregateOperator() if key in self._plan.closings and self._window_below(operator.input):
                yield from self._faults_of_distinct(operator)
                return
        ends = f"its input does not end ({', '.join(self._endless_sources(key))})"
        if isinstance(operator, AggregateOperator):
            yield (
                f"{ends}, and its result is only known when the input ends: in append mode Spark "
                f"only outputs final rows, and sinks here have no key for replacing rows; "
                f"{_POSSIBLE}"
            )
        else:
            yield f"{ends}, and Spark would keep every row of this {operator.type} forever; {_POSSIBLE}"

    def _faults_of_window(self, key: str, window: WindowOperator) -> Iterator[str]:
        if window.idle_after is not None:
            yield "it has 'idle_after', but Spark waits for every input; omit 'idle_after'"
        computed = [
            each for each in self._below(key) if each in self._plan.watermarks and self._computes(each)
        ]
        if computed:
            yield (
                f"its time is computed by {computed[0]}, on Spark as well, but Spark's watermark "
                f"must come from a column that Spark reads; compute the time at a node with the "
                f"engine embedded"
            )
        reader = self._plan.readers[key]
        while isinstance(self._plan.operators[reader], FilterOperator) and self._computes(reader):
            reader = self._plan.readers[reader]
        is_by_window = (
            isinstance(self._plan.operators[reader], AggregateOperator) and reader in self._plan.closings
        )
        if not is_by_window or not self._computes(reader):
            yield (
                f"{reader} reads this window, but on endless input Spark closes windows only for "
                f"an aggregate by window_start or window_end, at the same node, with only filters "
                f"between window and aggregate"
            )

    def _faults_of_distinct(self, operator: AggregateOperator) -> Iterator[str]:
        schema = self._plan.schemas[operator.input]
        for sql in operator.aggregates.values():
            if parse_aggregate(sql, schema).function == "count distinct":
                yield f"its input does not end, but for {sql} Spark needs an input that ends, to count distinct values"

    def _window_below(self, key: str) -> bool:
        """True if ``key`` is a window on Spark, with nothing but filters in between."""
        while isinstance(operator := self._plan.operators[key], FilterOperator) and self._computes(key):
            key = operator.input
        return isinstance(operator, WindowOperator) and self._computes(key)

    def _computes(self, key: str) -> bool:
        return self._on_spark(key, self._plan.operators[key])

    def _below(self, key: str) -> Iterator[str]:
        for child in self._plan.operators[key].children:
            yield child
            yield from self._below(child)

    def _endless_on_spark(self, key: str) -> str:
        """An operator below that Spark computes without an end."""
        return next(
            (each for each in self._below(key) if self._computes(each) and not self._bounded[each]), ""
        )

    def _endless_sources(self, key: str) -> Iterator[str]:
        operator = self._plan.operators[key]
        if isinstance(operator, BoundSource) and not self._bounded[key]:
            yield f"source {key}"
        for child in operator.children:
            yield from self._endless_sources(child)


_ARITHMETIC = frozenset({"add", "subtract", "multiply", "integer_divide", "modulo", "negate", "abs"})


def refusals(operator: FragmentOperator, inputs: Sequence[Schema]) -> Iterator[str]:
    """A sentence for each thing of the operator that Spark would compute differently, or not at all."""
    for schema in inputs:
        for column in schema:
            if column.type is T.UINT64:
                yield f"column {column.name} is uint64, for which Spark has no type; cast it to int64 first"
    if isinstance(operator, WindowOperator):
        yield from _of_window(operator, inputs[0])
    for expression in _expressions(operator, inputs):
        yield from dict.fromkeys(f"{reason}, in {expression.sql}" for reason in _of(expression.tree))


def _of_window(window: WindowOperator, schema: Schema) -> Iterator[str]:
    if window.late is not None:
        yield "it has a file for late rows, but Spark does not return these rows; omit 'late'"
    if any(column.name == window.time and column.type is T.DATE for column in schema):
        yield f"its time {window.time} is a date, but Spark's windows are over timestamps; cast it first"


def _expressions(operator: FragmentOperator, inputs: Sequence[Schema]) -> Iterator[Expression]:
    match operator:
        case FilterOperator():
            yield parse(operator.predicate, inputs[0])
        case ProjectOperator():
            yield from (parse(sql, inputs[0]) for sql in operator.columns.values())
        case AggregateOperator():
            for sql in operator.aggregates.values():
                argument = parse_aggregate(sql, inputs[0]).argument
                if argument is not None:
                    yield argument


def _of(node: Node) -> Iterator[str]:
    if node.type is T.UINT64:
        yield f"{node.sql} is uint64, for which Spark has no type; cast columns to int64 first"
    if not isinstance(node, Call):
        return
    if node.function == "cast":
        yield from _of_cast(node)
    elif node.function in _ARITHMETIC and node.type in UNSIGNED:
        yield f"{node.sql} computes in {node.type}, but Spark's integers are signed; cast an operand to int64"
    for argument in node.arguments:
        yield from _of(argument)


def _of_cast(call: Call) -> Iterator[str]:
    source = call.arguments[0].type
    if source is T.STRING:
        yield (
            f"{call.sql} parses {call.type} from strings, but Spark accepts different strings; let "
            f"the source parse them"
        )
    elif call.type in UNSIGNED and source not in UNSIGNED:
        yield f"{call.sql} casts to {call.type}, but Spark's integers are signed; cast to int64"
    elif call.type in UNSIGNED and source in UNSIGNED and UNSIGNED.index(source) > UNSIGNED.index(call.type):
        yield f"{call.sql} casts to the smaller {call.type}, whose range Spark does not check; cast to int64"
