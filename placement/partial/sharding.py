"""From operators that are to be in shards to the shards, with what gives them their rows and puts them together.

An operator ``x`` in shards becomes ``x>0``, ``x>1`` and so on, and ``x`` itself what puts them together for a reader
that is in none. Rows that are divided again pass ``x>shard``, or for each shard ``x>0>shard``, to the shards of its
reader; rows for one of these from several shards are merged there, as ``x>to>0``. No operator of a query has such an
id, and ``graph.carried`` returns whose rows these are.

Filters and projects of shards are in the same shards, and so is what groups, or joins, by columns by which its inputs
are divided into as many already. An operator has one reader, or several that are in no other shards than it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from placement.checking.schemas import DividedOperator, divisible_by, plain_columns
from placement.partial.provenance import children_of
from placement.plan import (
    AggregateOperator,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    MergerOperator,
    ProjectOperator,
    SharderOperator,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from placement.plan import FragmentOperator, PartialNode
    from topology import Schema

Node = TypeVar("Node", bound="FragmentOperator | PartialNode")

Shard = tuple[str, int]
"""The operator from which on rows are divided alike, and the number."""


@dataclass(frozen=True, slots=True)
class Spread(Generic[Node]):
    """The operators of a plan, inputs before their readers, with those that are in shards once for each.

    ``homes`` has the operator of the plan at whose node each is; ``shards`` those that are in a shard, and which.
    """

    operators: Mapping[str, Node]
    homes: Mapping[str, str]
    shards: Mapping[str, Shard]


def spread(operators: Mapping[str, Node], schemas: Mapping[str, Schema]) -> Spread[Node]:
    """Divide what is to be in shards; without any the plan is as it was."""
    spreading = _Spreading(schemas)
    for operator in operators.values():
        spreading.add(operator)
    return Spread(spreading.spread, spreading.homes, spreading.shards)


def shard_of(node: str) -> int | None:
    """Return the number of a node's shard of its operator; None if it is not a shard."""
    _, is_part, number = node.partition(">")
    return int(number) if is_part and number.isdecimal() else None


@dataclass(frozen=True, slots=True)
class _Division:
    """How what an operator gives out is divided; without ``by`` nothing is known of that."""

    begins: str
    by: tuple[str, ...]
    into: int


@dataclass(slots=True)
class _Spreading:
    schemas: Mapping[str, Schema]
    spread: dict[str, Any] = field(default_factory=dict)
    homes: dict[str, str] = field(default_factory=dict)
    shards: dict[str, Shard] = field(default_factory=dict)
    divided: dict[str, _Division] = field(default_factory=dict)

    def add(self, operator: FragmentOperator | PartialNode) -> None:
        match operator:
            case AggregateOperator() | DistinctOperator() | JoinOperator() if operator.shard is not None:
                self._divide(operator)
            case FilterOperator() | ProjectOperator() if operator.input in self.divided:
                before = self.divided[operator.input]
                self._add_shards(operator, _Division(before.begins, self._by_behind(operator), before.into))
            case _:
                for child in children_of(operator):
                    self._merge(child, operator.id)
                self._put(operator, operator.id)

    def _divide(self, operator: DividedOperator) -> None:
        division = self._division(operator)
        for child in children_of(operator):
            if not self._is_divided_as(child, division):
                self._shuffle(child, operator.id, division)
        self._add_shards(operator, division)

    def _division(self, operator: DividedOperator) -> _Division:
        """That of an input, if it can be, else a new one."""
        assert operator.shard is not None, "it is to be divided"
        may_be = divisible_by(operator, self.schemas[operator.id])
        for child in children_of(operator):
            before = self.divided.get(child)
            if before is None or before.into != operator.shard.into or not before.by:
                continue
            wanted = operator.shard.by
            if set(before.by) == set(wanted) if wanted is not None else set(before.by) <= set(may_be):
                return before
        return _Division(operator.id, operator.shard.by or may_be, operator.shard.into)

    def _is_divided_as(self, child: str, division: _Division) -> bool:
        before = self.divided.get(child)
        return before is not None and (before.by, before.into) == (division.by, division.into)

    def _by_behind(self, operator: FilterOperator | ProjectOperator) -> tuple[str, ...]:
        """Return the names of the columns after it, if all are there."""
        by = self.divided[operator.input].by
        if isinstance(operator, FilterOperator):
            return by
        names = {old: new for new, old in plain_columns(operator, self.schemas[operator.input]).items()}
        return tuple(names[name] for name in by) if set(by) <= set(names) else ()

    def _add_shards(
        self,
        operator: FilterOperator | ProjectOperator | DividedOperator,
        division: _Division,
    ) -> None:
        for number in range(division.into):
            inputs = [self._input_of(child, number) for child in children_of(operator)]
            own: dict[str, object] = {"id": _shard(operator.id, number)}
            own |= {"inputs": tuple(inputs)} if isinstance(operator, JoinOperator) else {"input": inputs[0]}
            if not isinstance(operator, FilterOperator | ProjectOperator):
                own["shard"] = None
            self._put(operator.model_copy(update=own), operator.id, (division.begins, number))
        self.divided[operator.id] = division

    def _input_of(self, child: str, number: int) -> str:
        """Return the input of a shard of an operator's only reader: rows that were divided again, or the same shard."""
        possible = (_merger_in(child, number), _sharder(child), _shard(child, number))
        return next(id_ for id_ in possible if id_ in self.spread)

    def _shuffle(self, child: str, reader: str, division: _Division) -> None:
        """Divide what an operator gives out, for the shards of its reader."""
        before = self.divided.get(child)
        if before is None:
            shards = [_shard(reader, number) for number in range(division.into)]
            self._put(
                SharderOperator(id=_sharder(child), input=child, by=division.by, shards=tuple(shards)), child
            )
            return
        into = tuple(_merger_in(child, number) for number in range(division.into))
        sharders = tuple(_sharder(_shard(child, number)) for number in range(before.into))
        for number, id_ in enumerate(sharders):
            sharder = SharderOperator(id=id_, input=_shard(child, number), by=division.by, shards=into)
            self._put(sharder, child, (before.begins, number))
        for number, id_ in enumerate(into):
            merger = MergerOperator(id=id_, inputs=sharders, by=before.by)
            self._put(merger, reader, (division.begins, number))

    def _merge(self, child: str, reader: str) -> None:
        """Put shards together for a reader that is in none."""
        if (before := self.divided.get(child)) is not None:
            shards = tuple(_shard(child, number) for number in range(before.into))
            self._put(MergerOperator(id=child, inputs=shards, by=before.by), reader)

    def _put(self, operator: FragmentOperator | PartialNode, home: str, shard: Shard | None = None) -> None:
        self.spread[operator.id] = operator
        self.homes[operator.id] = home
        if shard is not None:
            self.shards[operator.id] = shard


def _shard(operator: str, number: int) -> str:
    return f"{operator}>{number}"


def _sharder(operator: str) -> str:
    return f"{operator}>shard"


def _merger_in(operator: str, number: int) -> str:
    return f"{operator}>to>{number}"
