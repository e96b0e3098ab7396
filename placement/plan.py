"""The plan model: a query as a graph of operators, and the fragments that it is cut into where it runs free.

``Query`` is what a user writes (the query JSON). ``Fragment`` is what a worker runs: the same operators, with
the source and the sink bound to what the topology says of them, and network sources and sinks at the cut
edges. Both are plain JSON; an operator names its inputs by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_validator

from placement.durations import Duration, microseconds
from placement.errors import InvalidQuery
from placement.graph import Outline, shape_mistakes
from topology import (
    BufferSettings,
    ChannelPolicies,
    FaultSettings,
    Marks,
    Mistake,
    PhysicalSource,
    Schema,
    Sink,
)
from topology.base import FilePath
from topology.consistency import did_you_mean, listed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from topology.mistakes import Location

StateBytes = Annotated[int, Field(strict=True, ge=1)]
"""What an operator's state may hold; where a plan does not say it, the worker's bound counts."""
OperatorId = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class BaseOperator(BaseModel):
    """What all operators have."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: OperatorId

    @property
    def children(self) -> tuple[str, ...]:
        """The ids of the operators that this one reads, in order."""
        return ()


class UnaryOperator(BaseOperator):
    """An operator with one input."""

    input: OperatorId

    @property
    def children(self) -> tuple[str, ...]:
        """Its input."""
        return (self.input,)


class _Nary(BaseOperator):
    inputs: Annotated[tuple[OperatorId, ...], Field(min_length=2)]

    @property
    def children(self) -> tuple[str, ...]:
        return self.inputs


class SourceOperator(BaseOperator):
    """Reads a logical source; runs where the topology attaches the physical one."""

    type: Literal["source"] = "source"
    logical: str


class FilterOperator(UnaryOperator):
    """Keeps the rows for which ``predicate`` (an SQL expression) is true."""

    type: Literal["filter"] = "filter"
    predicate: str


class ProjectOperator(UnaryOperator):
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
    max_state_bytes: StateBytes | None = None


class AggregateOperator(UnaryOperator):
    """Groups by columns; ``aggregates`` maps output name to count, sum, avg, min or max of an expression."""

    type: Literal["aggregate"] = "aggregate"
    by: tuple[str, ...] = ()
    aggregates: Annotated[dict[str, str], Field(min_length=1)]
    max_state_bytes: StateBytes | None = None


class DistinctOperator(UnaryOperator):
    """Every row once, however often it came; null equals null."""

    type: Literal["distinct"] = "distinct"
    max_state_bytes: StateBytes | None = None


MAX_WINDOWS_PER_ROW = 1000


class WindowOperator(UnaryOperator):
    """Puts every row into the windows that its ``time`` falls into: adds ``window_start`` and ``window_end``.

    Windows are ``size`` long and begin every ``slide`` (without it: one after the other) from 1970-01-01 00:00 UTC on.
    Rows may come out of order by ``lateness``; what comes later goes to the file ``late``, if there is one, and is
    counted. A source that has had nothing for ``idle_after`` is not waited for.
    """

    type: Literal["window"] = "window"
    time: str
    size: Duration
    slide: Duration | None = None
    lateness: Duration = "0 seconds"
    late: FilePath | None = None
    idle_after: Duration | None = None

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        size, slide = microseconds(self.size), microseconds(self.slide or self.size)
        if not size or not slide:
            raise ValueError("expected a size, and a slide, of more than nothing")
        if slide > size:
            raise ValueError(
                f"rows between windows would be lost: slide {self.slide} is longer than size {self.size}"
            )
        if size > slide * MAX_WINDOWS_PER_ROW:
            raise ValueError(
                f"a row would be in {-(-size // slide):,} windows: expected a slide of at least a "
                f"{MAX_WINDOWS_PER_ROW:,}th of size {self.size}, got {self.slide}"
            )
        return self


class SinkOperator(UnaryOperator):
    """Writes to a sink that the topology names."""

    type: Literal["sink"] = "sink"
    sink: str


class BoundSource(SourceOperator):
    """A source with what the topology says of it; ``columns`` are those that are read."""

    columns: Schema = Field(alias="schema")
    physical: PhysicalSource


class BoundSink(SinkOperator):
    """A sink with what the topology says of it."""

    target: Sink


class NetworkSource(BaseOperator):
    """Reads a channel at the node whose address is ``address``; ``lossy``: its sender may give up batches."""

    type: Literal["network_source"] = "network_source"
    channel: str
    address: str
    columns: Schema = Field(alias="schema")
    buffer: BufferSettings | None = None
    fault: FaultSettings | None = None
    lossy: bool = False


class NetworkSink(UnaryOperator):
    """Writes to a channel of the node whose address is ``address``."""

    type: Literal["network_sink"] = "network_sink"
    channel: str
    address: str
    buffer: BufferSettings | None = None
    fault: FaultSettings | None = None


QueryOperator = Annotated[
    SourceOperator
    | FilterOperator
    | ProjectOperator
    | UnionOperator
    | JoinOperator
    | AggregateOperator
    | DistinctOperator
    | WindowOperator
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
    | DistinctOperator
    | WindowOperator
    | BoundSink
    | NetworkSource
    | NetworkSink,
    Field(discriminator="type"),
]


class QueryChannels(ChannelPolicies):
    """Policies of the query's channels; ``of`` is by the operator whose output they carry."""

    of: dict[OperatorId, ChannelPolicies] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a query was read from. No part of what it says: all origins are equal."""

    name: str = field(default="query", compare=False)
    marks: Marks = field(default_factory=Marks, compare=False)


class Query(BaseModel):
    """A query as written: a graph of operators by id, of which all lead to sinks.

    Making one that is no such graph raises ``InvalidQuery`` with every mistake. That it is a tree with one sink as its
    root, as what runs free has to be, is for ``check`` to say. ``name`` goes into the names of its channels and
    fragments; a file's query is named after the file.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: Annotated[tuple[QueryOperator, ...], Field(min_length=1)]
    channels: QueryChannels = QueryChannels()
    """Policies of its channels, over those of nodes and of the topology."""
    _origin: Origin = PrivateAttr(default_factory=Origin)

    def model_post_init(self, context: Any, /) -> None:
        """Take the origin that a loader gives as validation context, and check the shape."""
        if isinstance(context, Origin):
            self._origin = context
        found = [*shape_mistakes(self.outlines), *unknown_operators(self.channels.of, self.outlines)]
        if found:
            raise InvalidQuery(self.mistake(path, message) for path, message in found)

    @property
    def outlines(self) -> list[Outline]:
        """What its shape is made of."""
        return [outline(("operators", index), operator) for index, operator in enumerate(self.operators)]

    @property
    def name(self) -> str:
        """What its channels and fragments are named after: letters, digits, dots, dashes and underscores."""
        return self._origin.name

    def mistake(self, path: Location, message: str) -> Mistake:
        """The mistake ``message``, with the place of ``path`` in the file that the query was read from."""
        return self._origin.marks.mistake(path, message)


def outline(path: Location, operator: QueryOperator) -> Outline:
    """What the shape of a query is made of."""
    if isinstance(operator, UnaryOperator):
        places: list[Location] = [(*path, "input")]
    else:
        places = [(*path, "inputs", index) for index, _ in enumerate(operator.children)]
    return Outline(path, operator.id, operator.type, tuple(zip(places, operator.children, strict=True)))


def unknown_operators(of: Iterable[str], outlines: Iterable[Outline]) -> Iterator[tuple[Location, str]]:
    """Operators whose channels have policies, and which there are none."""
    known = [each.id for each in outlines if each.type != "sink"]
    for name in of:
        if name not in known:
            message = f"policies of the output of {name!r}, which is no operator with one{did_you_mean(name, known)}"
            yield ("channels", "of", name), f"{message}; expected {listed(known)}"


class WatermarkOrigin(BaseModel):
    """Where a watermark begins: at the greatest ``time`` that ``operator`` has given out, less ``lateness``.

    It says that no earlier row follows. An origin that has had nothing for ``idle_after`` is not waited for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: OperatorId
    time: str
    lateness: Duration
    idle_after: Duration | None


class Closing(BaseModel):
    """An operator that is done with a window when the watermark passes its end.

    That is ``to_end_us`` microseconds behind what ``column`` says; windows begin every ``slide_us``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: OperatorId
    column: str
    to_end_us: int
    slide_us: int


class SparkEngine(BaseModel):
    """Spark at ``master`` computes the fragment: at once over inputs that end, else as they come, in append mode."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["spark"] = "spark"
    master: str
    bounded: bool


class Late(StrEnum):
    """What becomes of rows that come when their window is over."""

    COUNT = "count"
    """They are dropped, and counted."""
    FAIL = "fail"
    """The fragment that would drop one fails."""


class Fragment(BaseModel):
    """A connected group of operators on one node, inputs before what reads them; the last is its root.

    ``engine`` is what computes it, None the worker's own. ``watermarks`` begin at some of its operators, and
    ``closings`` are what they close.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    node: str
    operators: tuple[FragmentOperator, ...]
    engine: SparkEngine | None = None
    watermarks: tuple[WatermarkOrigin, ...] = ()
    closings: tuple[Closing, ...] = ()
    late: Late = Late.COUNT
