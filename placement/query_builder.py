"""Queries built by method calls: each call is one operator of a query file, and the plan is the same.

::

    late = source("flights").filter("dep_delay > 15").group_by("origin").aggregate(n="count(*)")
    query = late.sink("delays").query()
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from placement.errors import InvalidQuery
from placement.graph import bottom_up
from placement.plan import Origin, Query
from placement.reading.reader import sanitized
from topology import Marks, Mistake
from topology.mistakes import in_file_order
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placement.plan import How
    from topology.mistakes import Location

__all__ = ["Grouped", "Relation", "source"]

_ID_LIMIT = 150


@dataclass(frozen=True, slots=True, eq=False)
class Operator:
    """An operator of a query that is built. ``place``: the file and the line of its call."""

    type: str
    fields: Mapping[str, Any]
    inputs: tuple[Operator, ...]
    place: tuple[str, int]
    id: str | None = None


def source(logical: str) -> Relation:
    """Return the rows of a logical source of the topology, for a query built by method calls."""
    return Relation(_operator("source", {"logical": logical}))


class Relation:
    """The rows of an operator, to build a query, which is then run or written as JSON; no method computes rows.

    A relation never changes: each method returns another relation, which reads this one. If several relations read one,
    it is still one operator of the query. Expressions are SQL, as in query files. Nothing is checked before `query`,
    whose errors name the line of the call with the mistake.
    """

    __slots__ = ("_operator",)

    def __init__(self, operator: Operator) -> None:
        self._operator = operator

    @property
    def is_sink(self) -> bool:
        """True if it writes to a sink, and has no rows itself."""
        return self._operator.type == "sink"

    def filter(self, predicate: str) -> Relation:
        """Keep the rows for which an expression is true."""
        return self._read_by("filter", {"predicate": predicate})

    def project(self, columns: Mapping[str, str] | None = None, /, **named: str) -> Relation:
        """Compute columns, by name and expression, in order; the columns in ``columns`` come first."""
        return self._read_by("project", {"columns": _named("project", columns, named)})

    def union(self, *others: Relation) -> Relation:
        """Add all rows of other relations, which have the same schema."""
        return self._read_by("union", {}, *others)

    def join(self, *others: Relation, on: str | Sequence[str], how: How = "inner") -> Relation:
        """Join with other relations on columns of the same names. An outer join has exactly one other relation.

        A column name that several inputs have becomes ``<id>.<name>``, with the id that `named` sets.
        """
        return self._read_by("join", {"on": _listed(on), "how": how}, *others)

    def group_by(self, *columns: str) -> Grouped:
        """Group the rows by columns, for `Grouped.aggregate`."""
        return Grouped(self._operator, _listed(columns))

    def aggregate(self, aggregates: Mapping[str, str] | None = None, /, **named: str) -> Relation:
        """Compute one row of all rows: a column for each aggregate, such as ``n="count(*)"``."""
        return Grouped(self._operator, ()).aggregate(aggregates, **named)

    def distinct(self) -> Relation:
        """Keep every distinct row once; null equals null."""
        return self._read_by("distinct", {})

    def window(
        self,
        time: str,
        size: str,
        *,
        slide: str | None = None,
        lateness: str | None = None,
        late: str | None = None,
        idle_after: str | None = None,
    ) -> Relation:
        """Add ``window_start`` and ``window_end``, once for each window that the column ``time`` falls into.

        Lengths are a number and a unit, such as ``15 minutes``; ``late`` is a file for late rows.
        """
        fields = {"time": time, "size": size, "slide": slide, "lateness": lateness, "late": late}
        return self._read_by("window", {**fields, "idle_after": idle_after})

    def view(
        self,
        key: str | Sequence[str],
        *,
        name: str | None = None,
        max_bytes: int | None = None,
        evict: str | None = None,
        node: str | None = None,
    ) -> Relation:
        """Let programs read the rows by ``key`` while the query runs; the new relation has the same rows."""
        fields = {"key": _listed(key), "name": name, "max_bytes": max_bytes, "evict": evict, "node": node}
        return self._read_by("view", fields)

    def sink(self, name: str) -> Relation:
        """Write the rows to a sink of the topology. A sink ends a query: no other relation can read it."""
        return self._read_by("sink", {"sink": name})

    def named(self, id: str) -> Relation:  # noqa: A002 - the name of the field
        """Set the id of the last operator, which appears in messages, columns of joins and policies."""
        if not isinstance(id, str):
            raise TypeError(f"an id is a str, got {id!r}")
        return Relation(replace(self._operator, id=id))

    def bounded(self, max_state_bytes: int) -> Relation:
        """Set the bound for the state of the last operator: a join, an aggregate or a distinct."""
        return self._with("max_state_bytes", max_state_bytes)

    def sharded(self, into: int, by: str | Sequence[str] | None = None) -> Relation:
        """Divide the last operator into shards: a join, an aggregate or a distinct that feeds a view."""
        return self._with("shard", {"into": into} if by is None else {"into": into, "by": _listed(by)})

    def query(self, *others: Relation, name: str = "query") -> Query:
        """Return the query with this sink or view, and ``others`` for a query in steps. Raises `InvalidQuery`.

        Channels and fragments are named after ``name``, as after the name of a query file.
        """
        operators, places = _operators(self._and(others))
        marks = _CallMarks(places)
        try:
            return Query.model_validate({"operators": operators}, context=Origin(sanitized(name), marks))
        except ValidationError as error:
            raise InvalidQuery(in_file_order(validation_mistakes(error, Query, marks))) from None

    def to_json(self, *others: Relation) -> str:
        """Return the text of the query file with this sink or view, and ``others``. Raises `InvalidQuery`."""
        self.query(*others)
        lines = ",\n  ".join(map(json.dumps, _operators(self._and(others))[0]))
        return f'{{"operators": [\n  {lines}]}}\n'

    def _read_by(self, type_: str, fields: Mapping[str, Any], *others: Relation) -> Relation:
        return Relation(_operator(type_, fields, self._and(others)))

    def _and(self, others: Iterable[Relation]) -> list[Operator]:
        """The operators of this relation and of others. Raises TypeError where one is none."""
        found = [self._operator]
        for each in others:
            if not isinstance(each, Relation):
                raise TypeError(f"expected a relation, got {each!r}: start one with nebuli.source(...)")
            found.append(each._operator)  # noqa: SLF001 - its own class
        return found

    def _with(self, field: str, value: Any) -> Relation:
        return Relation(replace(self._operator, fields={**self._operator.fields, field: value}))

    def __repr__(self) -> str:
        fields = "".join(f" {name}={value!r}" for name, value in self._operator.fields.items())
        return f"<Relation: {self._operator.type}{fields}>"


class Grouped:
    """The rows of a relation, grouped by columns."""

    __slots__ = ("_by", "_rows")

    def __init__(self, rows: Operator, by: Sequence[str]) -> None:
        self._rows = rows
        self._by = by

    def aggregate(self, aggregates: Mapping[str, str] | None = None, /, **named: str) -> Relation:
        """Compute a row for each group: its columns, then one for each aggregate, such as ``n="count(*)"``."""
        fields = {"by": list(self._by), "aggregates": _named("aggregate", aggregates, named)}
        return Relation(_operator("aggregate", fields, [self._rows]))


class _CallMarks(Marks):
    """The calls that made the operators: mistakes name their file and line."""

    def __init__(self, places: Sequence[tuple[str, int]]) -> None:
        super().__init__()
        self._places = places

    def mistake(self, path: Location, message: str, *, at_key: bool = False) -> Mistake:
        """The mistake, with the place of the operator's call."""
        match path:
            case ("operators", int(index), *_):
                return Mistake(message, *self._places[index])
        return Mistake(message)


def _operators(roots: Sequence[Operator]) -> tuple[list[dict[str, Any]], list[tuple[str, int]]]:
    """The operators above these roots, inputs first, as a query file has them, and where each was made."""
    found = {str(id(each)): each for each in roots}
    waiting = [*roots]
    while waiting:
        new = {str(id(each)): each for each in waiting.pop().inputs}
        waiting += [each for key, each in new.items() if key not in found]
        found |= new
    inputs = {key: [str(id(each)) for each in operator.inputs] for key, operator in found.items()}
    order = bottom_up(inputs, *dict.fromkeys(str(id(each)) for each in roots))
    ids = _ids({key: found[key] for key in order})
    operators = []
    for key in order:
        type_, read = found[key].type, [ids[each] for each in inputs[key]]
        given: dict[str, Any] = {"id": ids[key], "type": type_}
        if type_ in ("union", "join"):
            given["inputs"] = read
        elif read:
            given["input"] = read[0]
        operators.append(given | {**found[key].fields})
    return operators, [found[key].place for key in order]


def _ids(operators: Mapping[str, Operator]) -> dict[str, str]:
    """The id of each: its own, else one like the name of its source or sink, or like its type."""
    taken = {each.id for each in operators.values()}
    ids = {}
    for key, each in operators.items():
        if each.id is not None:
            ids[key] = each.id
            continue
        wanted = str(each.fields.get("logical") or each.fields.get("sink") or each.type)
        base = re.sub(r"[^!-=?-~]+", "-", wanted)[:_ID_LIMIT]
        ids[key], number = base, 2
        while ids[key] in taken:
            ids[key], number = f"{base}_{number}", number + 1
        taken.add(ids[key])
    return ids


def _operator(type_: str, fields: Mapping[str, Any], inputs: Sequence[Operator] = ()) -> Operator:
    given = {name: value for name, value in fields.items() if value is not None}
    return Operator(type_, given, tuple(inputs), _caller())


def _named(call: str, columns: Mapping[str, str] | None, named: Mapping[str, str]) -> dict[str, str]:
    """The expressions of a call by the names of their columns. Raises TypeError where they have none."""
    if columns is not None and not isinstance(columns, Mapping):
        raise TypeError(
            f"{call} needs a column name for each expression, got {columns!r}: write "
            f"{call}(name=...), or {call}({{'a name': ...}})"
        )
    return {**(columns or {}), **named}


def _listed(names: str | Iterable[str]) -> list[str]:
    """One name, or several. Raises TypeError for anything else."""
    if isinstance(names, str):
        return [names]
    found = list(names) if isinstance(names, Iterable) else [names]
    if wrong := [each for each in found if not isinstance(each, str)]:
        raise TypeError(f"expected column names, got {wrong[0]!r}")
    return found


def _caller() -> tuple[str, int]:
    """The file and the line of the call that came from another module."""
    frame = sys._getframe(1)  # noqa: SLF001 - as `warnings` finds the caller
    while frame.f_back is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno
