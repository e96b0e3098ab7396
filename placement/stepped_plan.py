"""The plan of a query that runs in steps: operators between named inputs and outputs, and where rows change members.

Each of the ``members`` that run the plan has a copy of all operators, and a part of the rows. An input is named by its
source's id in the query, an output by its sink's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from placement.plan import (
    BaseOperator,
    BoundSink,
    BoundSource,
    Closing,
    Fragment,
    RowOperator,
    UnaryOperator,
    ViewOperator,
    WatermarkOrigin,
)
from topology import Schema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from topology import SinkConnector

Member = Annotated[int, Field(ge=0)]
"""The number of a member, from 0 on."""
TIME = "step time"
"""The name of the times of steps that read or write dated data: no operator has a space in its name."""
_KEEP_OUTPUT_BYTES = 1 << 30
"""The default: for queries registered before the setting existed."""


class InputOperator(BaseOperator):
    """A named input: rows of a logical source; ``columns`` are those that are read.

    One that is ``materialized`` keeps all its rows, for queries.
    """

    type: Literal["input"] = "input"
    logical: str
    columns: Schema = Field(alias="schema")
    materialized: bool = False


class ExchangeOperator(UnaryOperator):
    """Gives each row to the member selected by the hash of its columns ``by``: every member to every other."""

    type: Literal["exchange"] = "exchange"
    by: Annotated[tuple[str, ...], Field(min_length=1)]


class ShardOperator(UnaryOperator):
    """As an exchange, of rows that are all at ``member``."""

    type: Literal["shard"] = "shard"
    by: Annotated[tuple[str, ...], Field(min_length=1)]
    member: Member


class GatherOperator(UnaryOperator):
    """Gives all rows to ``member``."""

    type: Literal["gather"] = "gather"
    member: Member


class LateOperator(UnaryOperator):
    """Gives the rows that its window has dropped, as the window would have given them."""

    type: Literal["late"] = "late"


class AlignOperator(UnaryOperator):
    """Leaves its rows unchanged, and announces to all members how far event time has come in them."""

    type: Literal["align"] = "align"


Exchanging = ExchangeOperator | ShardOperator | GatherOperator | AlignOperator
"""The operators at which members exchange data."""
StepOperator = Annotated[
    InputOperator
    | RowOperator
    | ViewOperator
    | LateOperator
    | ExchangeOperator
    | ShardOperator
    | GatherOperator
    | AlignOperator
    | BoundSink,
    Field(discriminator="type"),
]


class SteppedPlan(BaseModel):
    """A checked query in steps, inputs before what reads them, in an order that the query's file has no part in.

    ``watermarks`` begin at some of its operators, and ``closings`` are what they close.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    members: Annotated[int, Field(ge=1)] = 1
    operators: tuple[StepOperator, ...]
    watermarks: tuple[WatermarkOrigin, ...] = ()
    closings: tuple[Closing, ...] = ()

    @property
    def inputs(self) -> Iterator[InputOperator]:
        """The inputs."""
        return (each for each in self.operators if isinstance(each, InputOperator))

    @property
    def outputs(self) -> Iterator[BoundSink]:
        """The outputs."""
        return (each for each in self.operators if isinstance(each, BoundSink))

    @property
    def views(self) -> Iterator[ViewOperator]:
        """Where rows are read by a key."""
        return (each for each in self.operators if isinstance(each, ViewOperator))

    @property
    def late_outputs(self) -> set[str]:
        """The outputs that have what a window has dropped, and no sink in the query."""
        below = {each.id: each for each in self.operators}
        found = set()
        for output in self.outputs:
            origin = below[output.input]
            while isinstance(origin, GatherOperator):
                origin = below[origin.input]
            if isinstance(origin, LateOperator):
                found.add(output.id)
        return found

    @property
    def homes(self) -> dict[str, int]:
        """The member that has an output's rows; and that of an input, where its rows are not at all members.

        Late rows are at the first member, that of the first sink. All outputs that are dated are at one, which gives
        steps their `TIME`.
        """
        late = self.late_outputs
        sinks = (each.id for each in self.outputs if each.id not in late)
        found = dict.fromkeys(late, 0) | {
            key: index % self.members
            for keys in ((each.id for each in self.inputs), sinks)
            for index, key in enumerate(sorted(keys))
        }
        dated = self.dated_outputs
        return found | dict.fromkeys([*dated, TIME], found[dated[0]]) if dated else found

    @property
    def dated_outputs(self) -> list[str]:
        """Those whose sinks are written at times, in order."""
        return sorted(each.id for each in self.outputs if each.target.dated)


class Share(BaseModel):
    """Which of the files that match a pattern one of ``of`` members reads, from ``number`` 0 on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: Member
    of: Annotated[int, Field(ge=1)]


class Feed(BaseModel):
    """A physical source, which is read into an input.

    ``name`` is that of the source for the log: under it the log knows how much of it was read. With a ``share`` its
    path may be a pattern, which is looked up where the member runs.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    input: str
    name: str
    source: BoundSource
    share: Share | None = None


class _StepFragment(BaseModel):
    """A node's part of a query in steps."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: str
    node: str
    circuit: str
    """The name of the circuit in the ids of its channels."""
    plan: SteppedPlan
    external: tuple[str, ...] = ()
    """The inputs that have no source: programs push into them, and they do not end."""

    @property
    def operators(self) -> tuple[()]:
        """Those that read and write channels of fragments; always empty."""
        return ()


class Takeover(BaseModel):
    """The initial state of a member that takes over from so many ``before`` it.

    Channels of the ``transfer`` bring it.
    """

    model_config = ConfigDict(frozen=True)

    transfer: str
    before: Annotated[int, Field(ge=1)]


class MemberFragment(_StepFragment):
    """A member at a node, with the sources that it reads there.

    With a ``takeover`` it begins with what others had. ``awaits_growth``: event time waits for what a later run finds
    in sources that grow.
    """

    type: Literal["member"] = "member"
    member: Member
    feeds: tuple[Feed, ...]
    takeover: Takeover | None = None
    awaits_growth: bool = False
    keep_output_bytes: Annotated[int, Field(ge=0)] | None = _KEEP_OUTPUT_BYTES
    """How much it keeps of the output that sinks have had, for programs that read it; None: all."""

    @property
    def targets(self) -> Mapping[str, SinkConnector]:
        """The sinks of the outputs whose rows it has, by output."""
        homes = self.plan.homes
        return {each.id: each.target for each in self.plan.outputs if homes[each.id] == self.member}


class CoordinatorPlacement(_StepFragment):
    """The coordinator at a node; ``addresses`` are the members' nodes, in the members' order.

    ``closes``: event time ends at the end of all inputs.
    """

    type: Literal["coordinator"] = "coordinator"
    addresses: tuple[str, ...]
    checkpoint_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    closes: bool = False


StepFragment = MemberFragment | CoordinatorPlacement
AnyFragment = Fragment | StepFragment
