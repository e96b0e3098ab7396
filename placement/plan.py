"""The plan model: a query as a tree of operators, and the fragments that it is cut into.

``Query`` is what a user writes (the query JSON). ``Fragment`` is what a worker runs: the same operators, with the
source and the sink bound to what the topology says of them, and network sources and sinks at the cut edges. Both
are plain JSON; an operator names its inputs by id.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from topology import PhysicalSource, Schema, Sink

OperatorId = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[\x21-\x7e]+$")]


class _Operator(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    id: OperatorId

    @property
    def children(self) -> tuple[str, ...]:
        """The ids of the operators that this one reads, in order."""
        return ()


class _Unary(_Operator):
    input: OperatorId

    @property
    def children(self) -> tuple[str, ...]:
        return (self.input,)


class _Nary(_Operator):
    inputs: Annotated[tuple[OperatorId, ...], Field(min_length=2)]

    @property
    def children(self) -> tuple[str, ...]:
        return self.inputs


class SourceOperator(_Operator):
    """Reads a logical source; runs where the topology attaches the physical one."""

    type: Literal["source"] = "source"
    logical: str


class FilterOperator(_Unary):
    """Keeps the rows for which ``predicate`` (an SQL expression) is true."""

    type: Literal["filter"] = "filter"
    predicate: str


class ProjectOperator(_Unary):
    """Computes ``columns``: output name to SQL expression, in order."""

    type: Literal["project"] = "project"
    columns: Annotated[dict[str, str], Field(min_length=1)]


class UnionOperator(_Nary):
    """All rows of all inputs, which have equal schemas."""

    type: Literal["union"] = "union"


class JoinOperator(_Nary):
    """Inner equi-join on columns of the same name; a null key matches nothing."""

    type: Literal["join"] = "join"
    on: Annotated[tuple[str, ...], Field(min_length=1)]


class AggregateOperator(_Unary):
    """Groups by columns; ``aggregates`` maps output name to count, sum, avg, min or max of an SQL expression."""

    type: Literal["aggregate"] = "aggregate"
    by: tuple[str, ...] = ()
    aggregates: Annotated[dict[str, str], Field(min_length=1)]


class SinkOperator(_Unary):
    """Writes to a sink that the topology names."""

    type: Literal["sink"] = "sink"
    sink: str


class BoundSource(SourceOperator):
    """A source with what the topology says of it."""

    columns: Schema = Field(alias="schema")
    physical: PhysicalSource


class BoundSink(SinkOperator):
    """A sink with what the topology says of it."""

    target: Sink


class NetworkSource(_Operator):
    """Reads a channel at the node whose address is ``address``."""

    type: Literal["network_source"] = "network_source"
    channel: str
    address: str
    columns: Schema = Field(alias="schema")


class NetworkSink(_Unary):
    """Writes to a channel of the node whose address is ``address``."""

    type: Literal["network_sink"] = "network_sink"
    channel: str
    address: str


QueryOperator = Annotated[
    SourceOperator
    | FilterOperator
    | ProjectOperator
    | UnionOperator
    | JoinOperator
    | AggregateOperator
    | SinkOperator,
    Field(discriminator="type"),
]
FragmentOperator = Annotated[
    BoundSource
    | FilterOperator
    | ProjectOperator
    | UnionOperator
    | JoinOperator
    | AggregateOperator
    | BoundSink
    | NetworkSource
    | NetworkSink,
    Field(discriminator="type"),
]


class Query(BaseModel):
    """A query as written: operators by id, one sink."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: Annotated[tuple[QueryOperator, ...], Field(min_length=1)]


class Fragment(BaseModel):
    """A connected group of operators on one node, inputs before the operators that read them; the last is its root."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    node: str
    operators: tuple[FragmentOperator, ...]
