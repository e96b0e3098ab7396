"""Which engine computes what, and what may be given to Spark.

The operators at a node with ``engine: spark`` are Spark's; sources, sinks and bridges, which compute nothing, stay with
the worker. Spark's part of a query is a batch job where all its inputs end, and else runs in append mode: it never
takes a row back, and nobody may take one back from it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from placement.errors import NotOnEngine
from placement.plan import (
    AggregateOperator,
    BoundSink,
    BoundSource,
    FilterOperator,
    JoinOperator,
    NetworkSink,
    NetworkSource,
    ProjectOperator,
    SparkEngine,
    UnionOperator,
)
from placement.spark_limits import refusals
from topology import GeneratorSource, TcpSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from placement.bottom_up import Placement
    from placement.plan import FragmentOperator

_STATELESS = (FilterOperator, ProjectOperator, UnionOperator)
_ENDS = (BoundSource, BoundSink, NetworkSource, NetworkSink)


class Engines:
    """The engines of a placed plan."""

    def __init__(self, placement: Placement) -> None:
        self._plan = placement.plan
        self._nodes = placement.nodes
        self._masters: Mapping[str, str] = placement.plan.spark_masters
        self._bounded: dict[str, bool] = {}
        self._taking_back: dict[str, str] = {}
        """For an operator whose output takes rows back: the aggregate that begins it."""
        for key, operator in self._plan.operators.items():
            self._learn(key, operator)

    def of(self, node: str, operators: Iterable[FragmentOperator]) -> SparkEngine | None:
        """Of a fragment at ``node``; None: the worker's own."""
        master = self._masters.get(node)
        computing = [each for each in operators if not isinstance(each, _ENDS)]
        if master is None or not computing:
            return None
        return SparkEngine(master=master, bounded=self._bounded[computing[-1].id])

    def check(self) -> None:
        """Raise ``NotOnEngine`` with everything that Spark cannot do where it was placed."""
        faults = [
            f"{operator.type} {key} at {self._nodes[key]}, whose engine is spark: {fault}"
            for key, operator in self._plan.operators.items()
            if self._on_spark(key, operator)
            for fault in self._faults(key, operator)
        ]
        if faults:
            raise NotOnEngine(faults)

    def _on_spark(self, key: str, operator: FragmentOperator) -> bool:
        return self._nodes[key] in self._masters and not isinstance(operator, _ENDS)

    def _learn(self, key: str, operator: FragmentOperator) -> None:
        if isinstance(operator, BoundSource):
            endless = isinstance(operator.physical, TcpSource) or (
                isinstance(operator.physical, GeneratorSource) and operator.physical.count is None
            )
            self._bounded[key] = not endless
            return
        self._bounded[key] = all(self._bounded[child] for child in operator.children)
        inherited = [self._taking_back[child] for child in operator.children if child in self._taking_back]
        if isinstance(operator, AggregateOperator) and not self._on_spark(key, operator):
            self._taking_back[key] = key
        elif inherited:
            self._taking_back[key] = inherited[0]

    def _faults(self, key: str, operator: FragmentOperator) -> Iterator[str]:
        for child in operator.children:
            if child in self._taking_back and not self._on_spark(child, self._plan.operators[child]):
                yield (
                    f"its input {child} takes rows back, since aggregate {self._taking_back[child]} at "
                    f"{self._nodes[self._taking_back[child]]} does, and Spark takes rows that stay only; give that "
                    f"aggregate's node the engine spark as well, or this node the engine embedded"
                )
        if not self._bounded[key] and not isinstance(operator, _STATELESS):
            yield self._endless(key, operator)
        inputs = [self._plan.schemas[child] for child in operator.children]
        yield from refusals(operator, inputs)

    def _endless(self, key: str, operator: FragmentOperator) -> str:
        sources = ", ".join(self._endless_sources(key))
        if isinstance(operator, JoinOperator):
            return (
                f"its input does not end ({sources}), and Spark would keep every row of a join for ever; filter, "
                f"project and union can run on Spark without an end"
            )
        return (
            f"its input does not end ({sources}), and its result is not known before that: in append mode Spark gives "
            f"out what never changes, and sinks here have no key by which rows could be replaced; filter, project and "
            f"union can run on Spark without an end"
        )

    def _endless_sources(self, key: str) -> Iterator[str]:
        operator = self._plan.operators[key]
        if isinstance(operator, BoundSource) and not self._bounded[key]:
            yield f"source {key}"
        for child in operator.children:
            yield from self._endless_sources(child)
