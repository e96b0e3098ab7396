"""Where the rows of a query in steps change members, so that each operator has together what it needs together.

Joins, aggregates and views need rows with equal keys at one member, distinct needs equal rows there, and an aggregate
of everything and a sink need all rows at one. All other operators work on the rows at their own member. Rows that are
together already stay where they are: an exchange divides them by the hash of columns, which filters and projects keep,
and so do joins and aggregates by these columns, and unions of what is divided alike. A group is together also where
rows are divided by some of its columns.

Rows that come in at one member are divided by the keys above it, once filters and projects have taken their part there:
rows that they leave out go nowhere. Without a key above it stays where it is, until it goes to an output.

Event time is made common where its watermark begins, so that all members close the same windows in the same step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement.checking.needed_columns import columns_needed
from placement.checking.schemas import InnerOperator, output_schema, plain_columns
from placement.plan import (
    AggregateOperator,
    BoundSink,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    UnionOperator,
    ViewOperator,
    WindowOperator,
)
from placement.stepped_plan import (
    AlignOperator,
    ExchangeOperator,
    GatherOperator,
    InputOperator,
    LateOperator,
    ShardOperator,
    SteppedPlan,
)
from placement.steps.whereabouts import by_hash, common, key_order, renamed, within

if TYPE_CHECKING:
    from collections.abc import Container, Sequence

    from placement.stepped_plan import Exchanging, StepOperator
    from placement.steps.whereabouts import Where
    from topology import Schema

    Keyed = AggregateOperator | DistinctOperator | JoinOperator | ViewOperator


def distribute(plan: SteppedPlan, members: int, spread: Container[str]) -> SteppedPlan:
    """The plan for so many members; rows of the inputs in ``spread`` come in at all of them, those of others at one.

    The plan's ``homes`` determine at which one, and at which one an output is emitted. One member needs nothing of all
    this. ``ValueError`` for less than one, and for a plan that is for several already.
    """
    if members < 1 or plan.members > 1:
        message = (
            f"expected a plan for one member, and at least one member to distribute it to; got a plan for "
            f"{plan.members}"
        )
        raise ValueError(f"{message}, and {members} to distribute it to")
    if members == 1:
        return plan
    return _Distribution(plan.model_copy(update={"members": members}), spread).distributed()


@dataclass(frozen=True, slots=True)
class _Stream:
    """Rows of an operator, as what has this id gives them out."""

    id: str
    where: Where


class _Distribution:
    def __init__(self, plan: SteppedPlan, spread: Container[str]) -> None:
        self._plan = plan
        self._spread = spread
        self._homes = plan.homes
        self._origins = {each.operator for each in plan.watermarks}
        self._outputs = _first_outputs(plan)
        self._schemas = _schemas(plan)
        self._readers: dict[str, list[StepOperator]] = {}
        for operator in plan.operators:
            for child in operator.children:
                self._readers.setdefault(child, []).append(operator)
        # The operators after which rows that came in at one member are divided, and the columns.
        alone = [each for each in plan.inputs if each.id not in spread]
        self._divided = dict(found for each in alone if (found := self._division(each)) is not None)
        # By operator: the input of readers that do not depend on where rows are, then the moved one.
        self._streams: dict[str, list[_Stream]] = {}
        self._operators: list[StepOperator] = []

    def distributed(self) -> SteppedPlan:
        for operator in self._plan.operators:
            self._place(operator)
        return self._plan.model_copy(update={"operators": tuple(self._operators)})

    def _place(self, operator: StepOperator) -> None:
        match operator:
            case InputOperator():
                home = None if operator.id in self._spread else self._homes[operator.id]
                self._add(operator, [], home)
            case FilterOperator() | WindowOperator() | LateOperator() | ProjectOperator() | UnionOperator():
                streams = [self._streams[child][0] for child in operator.children]
                self._add(operator, streams, self._left(operator, [each.where for each in streams]))
            case AggregateOperator(by=()):  # always after a gather: without rows it emits one, and only there
                # Operators that lead only to views are at the first member.
                member = self._homes.get(self._outputs.get(operator.id, ""), 0)
                self._add(operator, [self._gathered(self._narrowed(operator), member)], member)
            case AggregateOperator():
                where = self._streams[operator.input][0].where
                moves = not isinstance(where, int) and within(where, operator.by) is None
                child = self._narrowed(operator) if moves else operator.input
                self._add(operator, *self._together([child], operator.by))
            case DistinctOperator() | JoinOperator():
                self._add(operator, *self._together(operator.children, self._keys(operator)))
            case ViewOperator():
                (stream,), _ = self._together(operator.children, operator.key)
                self._add(operator, [stream], stream.where)
            case BoundSink():
                member, stream = self._homes[operator.id], self._streams[operator.input][0]
                if stream.where != member:
                    stream = self._gathered(operator.input, member)
                self._add(operator, [stream], member)

    def _add(self, operator: StepOperator, streams: Sequence[_Stream], where: Where) -> None:
        """Add an operator of the query, with these for its inputs."""
        self._operators.append(_reading(operator, [each.id for each in streams]))
        self._streams[operator.id] = [_Stream(operator.id, where)]
        if operator.id in self._origins:
            align = AlignOperator(id=f"{operator.id}>align", input=operator.id)
            self._operators.append(align)
            self._streams[operator.id] = [_Stream(align.id, where)]
        if operator.id in self._divided:
            self._streams[operator.id] = [self._hashed(operator.id, self._divided[operator.id])]

    def _left(self, operator: StepOperator, inputs: Sequence[Where]) -> Where:
        """Where the rows are of an operator that moves none."""
        if isinstance(operator, ProjectOperator):
            return renamed(inputs[0], plain_columns(operator, self._schemas[operator.input]))
        return common(inputs)

    def _keys(self, operator: Keyed) -> tuple[str, ...]:
        match operator:
            case AggregateOperator():
                return operator.by
            case JoinOperator():
                return operator.on
            case ViewOperator():
                return operator.key
            case DistinctOperator():
                return tuple(column.name for column in self._schemas[operator.id])

    def _together(self, children: Sequence[str], keys: Sequence[str]) -> tuple[list[_Stream], Where]:
        """Streams of the children in which rows with equal keys are at one member, and where that is."""
        streams = [self._streams[child][0] for child in children]
        first, *others = {each.where for each in streams}
        if isinstance(first, int) and not others:
            return streams, first
        if len(children) == 1 and (where := within(first, keys)):
            return streams, where
        order = self._order(children, keys)
        return [self._hashed(child, order) for child in children], by_hash(order)

    def _order(self, children: Sequence[str], keys: Sequence[str]) -> tuple[str, ...]:
        """The order of the keys by which most of the children are divided already."""
        counts: Counter[tuple[str, ...]] = Counter()
        for child in children:
            orders = [key_order(stream.where, keys) for stream in self._streams[child]]
            counts.update(list(dict.fromkeys(order for order in orders if order is not None)))
        return max(counts, key=lambda order: counts[order], default=tuple(keys))

    def _hashed(self, child: str, by: tuple[str, ...]) -> _Stream:
        """The child's rows, divided by the hash of columns in this order."""
        for stream in self._streams[child]:
            if key_order(stream.where, by) == by:
                return stream
        source, number = self._streams[child][0], len(self._streams[child])
        moved: Exchanging
        if isinstance(source.where, int):
            moved = ShardOperator(id=f"{child}>shard/{number}", input=source.id, by=by, member=source.where)
        else:
            moved = ExchangeOperator(id=f"{child}>exchange/{number}", input=source.id, by=by)
        return self._move(child, moved, by_hash(by))

    def _gathered(self, child: str, member: int) -> _Stream:
        """The child's rows, gathered at this member."""
        source, *moved_before = self._streams[child]
        for stream in moved_before:
            if stream.where == member:
                return stream
        number = len(self._streams[child])
        moved = GatherOperator(id=f"{child}>gather/{number}", input=source.id, member=member)
        return self._move(child, moved, member)

    def _move(self, child: str, moved: Exchanging, where: Where) -> _Stream:
        self._operators.append(moved)
        self._streams[child].append(_Stream(moved.id, where))
        return self._streams[child][-1]

    def _narrowed(self, operator: AggregateOperator) -> str:
        """Return an operator with only the input's columns that the aggregate needs, if there is no other reader."""
        child = operator.input
        needed = columns_needed(operator, self._schemas[child])
        names = [column.name for column in self._schemas[child]]
        kept = [name for name in names if name in needed] or names[:1]
        if len(kept) == len(names) or self._only_reader(child) is None:
            return child
        columns = {name: _quoted(name) for name in kept}
        project = ProjectOperator(id=f"{child}>columns", input=child, columns=columns)
        self._schemas[project.id] = output_schema(project, [self._schemas[child]], [])
        self._add(project, [self._streams[child][0]], self._left(project, [self._streams[child][0].where]))
        return project.id

    def _division(self, leaf: InputOperator) -> tuple[str, tuple[str, ...]] | None:
        """Return the operator after which the rows of an input are divided, and the columns.

        None where nothing above has a key: to send rows away and back takes more than what is computed of each.
        """
        last = leaf.id
        while isinstance(reader := self._only_reader(last), FilterOperator | ProjectOperator):
            last = reader.id
        for place in (last, leaf.id):
            if keys := self._keys_above(place):
                return place, keys
        return None

    def _only_reader(self, operator: str) -> StepOperator | None:
        readers = self._readers.get(operator, [])
        return readers[0] if len(readers) == 1 else None

    def _keys_above(self, place: str) -> tuple[str, ...]:
        """The keys of the first operator above that has some of the columns here, by their names here.

        All of them for a join, as many as there are for a group.
        """
        names = {place: {column.name: column.name for column in self._schemas[place]}}
        for operator in self._plan.operators:
            found = next((names[child] for child in operator.children if child in names), None)
            if found is None:
                continue
            match operator:
                case FilterOperator() | WindowOperator() | UnionOperator():
                    names[operator.id] = found
                case ProjectOperator():
                    plain = plain_columns(operator, self._schemas[operator.input])
                    names[operator.id] = {new: found[old] for new, old in plain.items() if old in found}
                case AggregateOperator() | DistinctOperator() | JoinOperator() | ViewOperator():
                    keys = self._keys(operator)
                    here = tuple(dict.fromkeys(found[key] for key in keys if key in found))
                    if here and (len(here) == len(keys) or not isinstance(operator, JoinOperator)):
                        return here
                    if isinstance(operator, ViewOperator):  # it gives on all columns
                        names[operator.id] = found
        return ()


def _quoted(name: str) -> str:
    """A column's name as an expression, with any characters."""
    return '"{}"'.format(name.replace('"', '""'))


def _reading(operator: StepOperator, inputs: Sequence[str]) -> StepOperator:
    """The operator with these for its inputs."""
    match operator:
        case InputOperator():
            return operator
        case JoinOperator() | UnionOperator():
            return operator.model_copy(update={"inputs": tuple(inputs)})
    return operator.model_copy(update={"input": inputs[0]})


def _first_outputs(plan: SteppedPlan) -> dict[str, str]:
    """The first output by name that an operator's rows lead to, by operator."""
    found = {each.id: each.id for each in plan.outputs}
    for operator in reversed(plan.operators):
        if (output := found.get(operator.id)) is None:
            continue  # it leads to views only
        for child in operator.children:
            found[child] = min(output, found.get(child, output))
    return found


def _schemas(plan: SteppedPlan) -> dict[str, Schema]:
    found: dict[str, Schema] = {}
    for operator in plan.operators:
        if isinstance(operator, InputOperator):
            found[operator.id] = operator.columns
        elif isinstance(operator, LateOperator):
            found[operator.id] = found[operator.input]
        elif isinstance(operator, InnerOperator):
            found[operator.id] = output_schema(operator, [found[child] for child in operator.children], [])
    return found
