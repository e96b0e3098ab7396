"""The plan model: a query as a graph of operators, and the fragments that it is cut into where it runs free.

``Query`` is what a user writes (the query JSON). ``Fragment`` is what a worker runs: the same operators, with the
source and the sink bound to their settings in the topology, and network sources and sinks at the cut edges. Both are
plain JSON; an operator names its inputs by id.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, model_serializer, model_validator

from placement.durations import Duration, microseconds
from placement.errors import InvalidQuery
from placement.graph import Outline, roots_of, shape_mistakes
from placement.view_nodes import Base, Output, Stream, View
from topology import (
    Address,
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

    from pydantic import SerializerFunctionWrapHandler

    from topology.mistakes import Location

StateBytes = Annotated[int, Field(strict=True, ge=1)]
"""Bound on an operator's state; without one in the plan, the worker's bound counts."""
OperatorId = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[\x21-\x7e]+$")]


class BaseOperator(BaseModel):
    """The common part of all operators."""

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


class SharderOperator(UnaryOperator):
    """Gives each row to one of ``shards``, its readers in their order: the one selected by the hash of ``by``."""

    type: Literal["sharder"] = "sharder"
    by: Annotated[tuple[str, ...], Field(min_length=1)]
    shards: Annotated[tuple[OperatorId, ...], Field(min_length=2)]


class MergerOperator(_Nary):
    """All rows of the shards ``inputs``, each of which has those selected by the hash of the columns ``by``.

    Without ``by`` a row may be in any of them.
    """

    type: Literal["merger"] = "merger"
    by: tuple[str, ...] = ()


class Sharding(BaseModel):
    """Into how many shards an operator is divided, and by the hash of which of the columns that it groups or joins by.

    Without ``by`` as its rows are divided already, if these are such columns; else by all of them.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    into: Annotated[int, Field(strict=True, ge=2, le=64)]
    by: Annotated[tuple[str, ...], Field(min_length=1)] | None = None


How = Literal["inner", "left", "right", "full"]
"""The inputs whose rows a join emits even without a match: no input's, the first one's, the second one's or both."""


class _Divisible(BaseOperator):
    """An operator that may be in shards, by its field ``shard``."""

    @model_serializer(mode="wrap")
    def _without_what_says_nothing(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit keys that operators did not have before, if they are unset: earlier documents stay the same."""
        written: dict[str, Any] = handler(self)
        for key, nothing in (("shard", None), ("how", "inner")):
            if key in written and getattr(self, key) == nothing:
                del written[key]
        return written


class JoinOperator(_Nary, _Divisible):
    """Equi-join on columns of the same name; a null key matches nothing.

    ``how`` is that of SQL: outer joins, which have two inputs, give rows without a match with nulls for the other's
    columns.
    """

    type: Literal["join"] = "join"
    on: Annotated[tuple[str, ...], Field(min_length=1)]
    how: How = "inner"
    max_state_bytes: StateBytes | None = None
    shard: Sharding | None = None

    @property
    def preserved(self) -> tuple[int, ...]:
        """The inputs of which every row is given."""
        return {"inner": (), "left": (0,), "right": (1,), "full": (0, 1)}[self.how]

    @property
    def nullable(self) -> tuple[int, ...]:
        """The inputs whose columns are null where a row of the other one has no match."""
        return tuple(1 - port for port in reversed(self.preserved))


class AggregateOperator(UnaryOperator, _Divisible):
    """Groups by columns; ``aggregates`` maps output name to count, sum, avg, min or max of an expression."""

    type: Literal["aggregate"] = "aggregate"
    by: tuple[str, ...] = ()
    aggregates: Annotated[dict[str, str], Field(min_length=1)]
    max_state_bytes: StateBytes | None = None
    shard: Sharding | None = None


class DistinctOperator(UnaryOperator, _Divisible):
    """Every row once, however often it came; null equals null."""

    type: Literal["distinct"] = "distinct"
    max_state_bytes: StateBytes | None = None
    shard: Sharding | None = None


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
            raise ValueError("expected a size and a slide above zero")
        if slide > size:
            raise ValueError(
                f"rows between windows would be lost: slide {self.slide} is longer than size {self.size}"
            )
        if size > slide * MAX_WINDOWS_PER_ROW:
            raise ValueError(
                f"a row would be in {-(-size // slide):,} windows, and the limit is {MAX_WINDOWS_PER_ROW:,}: "
                f"expected a slide of at least 1/{MAX_WINDOWS_PER_ROW:,} of size {self.size}, got {self.slide}"
            )
        return self


def window_times(operators: Iterable[object]) -> dict[str, str]:
    """The column that has the time of rows, by the id of each window among operators."""
    return {each.id: each.time for each in operators if isinstance(each, WindowOperator)}


class ViewOperator(UnaryOperator):
    """Rows of its input are read here by ``key``, and are passed on unchanged to its readers, if there are any.

    It is read by its ``name``, or by its id. ``node`` is where it is, if nothing reads it. ``max_bytes`` is a budget:
    if the state of keys that were read is larger, keys are evicted by ``evict``.
    """

    type: Literal["view"] = "view"
    key: Annotated[tuple[str, ...], Field(min_length=1)]
    name: OperatorId | None = None
    max_bytes: StateBytes | None = None
    evict: Literal["least_recently_used", "random"] = "least_recently_used"
    node: Address | None = None


class SinkOperator(UnaryOperator):
    """Writes to a sink that the topology names."""

    type: Literal["sink"] = "sink"
    sink: str


class BoundSource(SourceOperator):
    """A source with its settings in the topology; ``columns`` are those that are read."""

    columns: Schema = Field(alias="schema")
    physical: PhysicalSource


class BoundSink(SinkOperator):
    """A sink with its settings in the topology; ``only_grows``: its input retracts no row."""

    target: Sink
    only_grows: bool = False


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


RowOperator = (
    FilterOperator
    | ProjectOperator
    | UnionOperator
    | JoinOperator
    | AggregateOperator
    | DistinctOperator
    | WindowOperator
)
"""Operators that turn rows into rows, however a query runs."""
QueryOperator = Annotated[
    SourceOperator | RowOperator | ViewOperator | SinkOperator,
    Field(discriminator="type"),
]
FragmentOperator = Annotated[
    BoundSource
    | RowOperator
    | SharderOperator
    | MergerOperator
    | ViewOperator
    | BoundSink
    | NetworkSource
    | NetworkSink,
    Field(discriminator="type"),
]
PartialNode = Annotated[
    Base | Stream | RowOperator | SharderOperator | MergerOperator | View | Output,
    Field(discriminator="type"),
]
"""The nodes of the plan of partial state."""


class QueryChannels(ChannelPolicies):
    """Policies of the query's channels; ``of`` is by the operator whose output they carry."""

    of: dict[OperatorId, ChannelPolicies] = Field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a query was read from. Not a part of its contents: all origins are equal."""

    name: str = field(default="query", compare=False)
    marks: Marks = field(default_factory=Marks, compare=False)


class Query(BaseModel):
    """A query as written: a graph of operators by id, of which all lead to sinks, or to views that nothing reads.

    Making one of another shape raises ``InvalidQuery`` with every mistake. That it is a tree with one of these as
    its root, as a query that runs free has to be, is checked by ``check``. ``name`` goes into the names of its channels
    and fragments; a file's query is named after the file.
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
        """The outline of its shape."""
        return [outline(("operators", index), operator) for index, operator in enumerate(self.operators)]

    @property
    def name(self) -> str:
        """The name of its channels and fragments: letters, digits, dots, dashes and underscores."""
        return self._origin.name

    def mistake(self, path: Location, message: str) -> Mistake:
        """The mistake ``message``, with the place of ``path`` in the file that the query was read from."""
        return self._origin.marks.mistake(path, message)


def outline(path: Location, operator: QueryOperator) -> Outline:
    """The outline of a query's shape."""
    if isinstance(operator, UnaryOperator):
        places: list[Location] = [(*path, "input")]
    else:
        places = [(*path, "inputs", index) for index, _ in enumerate(operator.children)]
    name = operator.name if isinstance(operator, ViewOperator) else None
    return Outline(path, operator.id, operator.type, tuple(zip(places, operator.children, strict=True)), name)


def unknown_operators(of: Iterable[str], outlines: Iterable[Outline]) -> Iterator[tuple[Location, str]]:
    """Return ids with channel policies that are not operators."""
    outlines = list(outlines)
    roots = {each.id for each in roots_of(outlines)}
    known = [each.id for each in outlines if each.id not in roots]
    for name in of:
        if name not in known:
            message = (
                f"policies are given for the output of {name!r}, but no operator with an output has this id"
            )
            yield ("channels", "of", name), f"{message}{did_you_mean(name, known)}; expected {listed(known)}"


class WatermarkOrigin(BaseModel):
    """Where a watermark begins: at the greatest ``time`` that ``operator`` has given out, less ``lateness``.

    It promises that no earlier row follows. An origin that has had nothing for ``idle_after`` is not waited for.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    operator: OperatorId
    time: str
    lateness: Duration
    idle_after: Duration | None


class Closing(BaseModel):
    """An operator that is done with a window when the watermark passes its end.

    That is ``to_end_us`` microseconds after ``column``; windows begin every ``slide_us``.
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
    """The handling of rows that come when their window is over."""

    COUNT = "count"
    """They are dropped, and counted."""
    FAIL = "fail"
    """The fragment that would drop one fails."""


AddedOperator = Annotated[
    FilterOperator
    | ProjectOperator
    | UnionOperator
    | JoinOperator
    | AggregateOperator
    | DistinctOperator
    | ViewOperator,
    Field(discriminator="type"),
]
"""Operators that can be added to a query with views while it runs."""


class Addition(BaseModel):
    """Operators that a query with views was given while it runs, inputs before readers: all are in ``fragment``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    fragment: str
    operators: tuple[AddedOperator, ...]

    @property
    def nodes(self) -> tuple[PartialNode, ...]:
        """The operators as nodes of the plan of partial state."""
        return tuple(
            View(each.id, each.input, each.key) if isinstance(each, ViewOperator) else each
            for each in self.operators
        )


class Fragment(BaseModel):
    """A connected group of operators on one node, inputs before what reads them; the last is its root.

    ``engine`` is what computes it, None the worker's own. ``watermarks`` begin at some of its operators, and
    ``closings`` are what they close. ``only_growing`` are its aggregates whose input retracts no row. ``views`` is the
    whole query, if it has views, for the plan of its state, and ``added`` what it was given since, in that order; both
    are the same in all of its fragments.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    node: str
    operators: tuple[FragmentOperator, ...]
    engine: SparkEngine | None = None
    watermarks: tuple[WatermarkOrigin, ...] = ()
    closings: tuple[Closing, ...] = ()
    only_growing: tuple[OperatorId, ...] = ()
    late: Late = Late.COUNT
    views: tuple[PartialNode, ...] = ()
    added: tuple[Addition, ...] = ()

    @property
    def own(self) -> tuple[FragmentOperator, ...]:
        """Its operators, and those of what was added that are here."""
        added = (
            each for addition in self.added if addition.fragment == self.id for each in addition.operators
        )
        return (*self.operators, *added)

    @model_serializer(mode="wrap")
    def _without_empty_keys(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """Omit keys that fragments did not have before, if they are empty: earlier documents stay the same."""
        written: dict[str, Any] = handler(self)
        for key in ("only_growing", "views", "added"):
            if not getattr(self, key):
                written.pop(key, None)
        return written
