"""Operators that a query with views is given while it runs: whether it can have them, and in which fragment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from placement.checking.schemas import DividedOperator
from placement.errors import InvalidQuery, QueryError, UnfitNodes
from placement.graph import Outline, bottom_up, carried, shape_mistakes
from placement.partial.node_plan import planned_of
from placement.partial.provenance import children_of, in_words, planned
from placement.plan import (
    AddedOperator,
    Addition,
    AggregateOperator,
    DistinctOperator,
    Fragment,
    JoinOperator,
    NetworkSink,
    NetworkSource,
    ViewOperator,
    outline,
)
from placement.reading.json_document import parse_json
from placement.view_nodes import Base, Output, Stream
from topology import Marks
from topology.consistency import listed
from topology.mistakes import in_file_order
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from placement.partial.provenance import PartialPlan
    from topology import Mistake
    from topology.mistakes import Location


class NoViews(QueryError):
    """A query that cannot be given views while it runs."""


class AddedOperators(BaseModel):
    """A user's addition of views: operators that read those of the query, or each other, and lead to views."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    operators: tuple[AddedOperator, ...] = Field(min_length=1)


def addition_of(text: str, fragments: Sequence[Fragment], file: str | None = None) -> Addition:
    """Return the addition of a JSON text to the query of the fragments; ``file`` is the name that mistakes carry.

    All of it is in one fragment, which has all that it reads of the query. An earlier addition is found again. Raises
    InvalidQuery with every mistake; NoViews for a query without any.
    """
    if not fragments[0].views:
        raise NoViews(
            "the query has no view, so it keeps no rows by key: add a view to the query's file, "
            "and start the query again"
        )
    data, marks, mistakes = parse_json(text, file)
    if data is None and mistakes:
        raise InvalidQuery(mistakes)
    try:
        operators = AddedOperators.model_validate(data).operators
    except ValidationError as error:
        raise InvalidQuery(
            in_file_order([*mistakes, *validation_mistakes(error, AddedOperators, marks)])
        ) from None
    if not mistakes and (found := _added_before(operators, fragments[0])):
        return found
    mistakes += [marks.mistake(path, message) for path, message in _misshapen(operators, fragments)]
    if mistakes:
        raise InvalidQuery(in_file_order(mistakes))
    return _Adding(operators, fragments, marks).addition()


def with_addition(fragments: Iterable[Fragment], addition: Addition) -> tuple[Fragment, ...]:
    """The fragments of a query that was given it."""
    return tuple(each.model_copy(update={"added": (*each.added, addition)}) for each in fragments)


def carried_over(fragments: Sequence[Fragment], added: Iterable[Addition]) -> tuple[Fragment, ...]:
    """Return the fragments of a newly placed query, with the earlier additions. Raises InvalidQuery."""
    found = tuple(fragments)
    for each in added:
        found = with_addition(found, _Adding(each.operators, found, Marks()).addition())
    return found


def _added_before(operators: Sequence[AddedOperator], fragment: Fragment) -> Addition | None:
    """Return the earlier addition, if it is the same."""
    wanted = tuple(_inputs_first(operators))
    return next((each for each in fragment.added if each.operators == wanted), None)


def _misshapen(
    operators: Sequence[AddedOperator], fragments: Sequence[Fragment]
) -> Iterator[tuple[Location, str]]:
    """Return the reasons why the operators are not a graph that leads from the query's to views."""
    if not any(isinstance(each, ViewOperator) for each in operators):
        yield ("operators",), "none of the operators to add is a view; expected an operator of type view"
        return
    for index, each in enumerate(operators):
        if isinstance(each, DividedOperator) and each.shard is not None:
            what = f"{each.type} {each.id}: a running query gets no new processes"
            yield (
                ("operators", index, "shard"),
                f"{what}; omit 'shard', or start the query again with this operator",
            )
    running = _running(fragments)
    taken = {each.id for each in running}
    clashes = [index for index, each in enumerate(operators) if each.id in taken]
    if clashes:  # no other check is possible if one name means two operators
        for index in clashes:
            what = f"the query already has an operator {operators[index].id!r}"
            yield ("operators", index, "id"), f"{what}: an added operator cannot be changed; use another id"
        return
    added = [outline(("operators", index), each) for index, each in enumerate(operators)]
    for path, message in shape_mistakes([*running, *added]):
        if path[0] == "operators":
            yield path, message


def _running(fragments: Sequence[Fragment]) -> list[Outline]:
    """The operators of the query as it is, as far as others have to fit to them: of shards what merges them."""
    names = {
        each.id: each.name
        for fragment in fragments
        for each in fragment.own
        if isinstance(each, ViewOperator)
    }
    return [
        Outline(
            ("running", id_),
            id_,
            "sink" if isinstance(node, Output) else node.type,
            tuple((("running", id_), child) for child in children_of(node) if carried(child) == child),
            names.get(id_),
        )
        for id_, node in planned_of(fragments[0]).nodes.items()
        if carried(id_) == id_
    ]


class _Adding:
    def __init__(
        self, operators: Sequence[AddedOperator], fragments: Sequence[Fragment], marks: Marks
    ) -> None:
        self._operators = _inputs_first(operators)
        self._places = {each.id: index for index, each in enumerate(operators)}
        self._fragments = fragments
        self._marks = marks
        self._before = planned_of(fragments[0])

    def addition(self) -> Addition:
        """Return the added operators, and their place. Raises InvalidQuery."""
        fragment = self._host()
        for each in self._operators:
            if isinstance(each, ViewOperator) and each.node not in (None, fragment.node):
                raise self._wrong(
                    each.id,
                    f"its input is at {fragment.node}, but its 'node' is {each.node}: omit 'node'",
                    "node",
                )
        addition = Addition(fragment=fragment.id, operators=tuple(self._operators))
        self._check(addition, {each.id for each in fragment.own if not isinstance(each, NetworkSource)})
        return addition

    def _host(self) -> Fragment:
        """The fragment that has all that they read of the query."""
        homes = {
            each.id: fragment
            for fragment in self._fragments
            for each in fragment.own
            if not isinstance(each, NetworkSource | NetworkSink)
        }
        host: tuple[str, Fragment] | None = None
        for operator in self._operators:
            for child in operator.children:
                if child not in homes:
                    continue
                if host is not None and homes[child] is not host[1]:
                    raise self._wrong(
                        operator.id,
                        f"it reads {child} (in fragment {homes[child].id} at {homes[child].node}) and {host[0]} "
                        f"(in fragment {host[1].id} at {host[1].node}), but a running query gets no new channels "
                        f"between fragments; read from only one of these fragments, or start the query again "
                        f"with all operators",
                    )
                host = child, homes[child]
        assert host is not None, "operators that read nothing of the query cannot lead to a view"
        return host[1]

    def _check(self, addition: Addition, here: set[str]) -> None:
        """Raise InvalidQuery where the query's state would have to be another one."""
        before = self._before
        try:
            plan = planned([*before.nodes.values(), *addition.nodes], before.paths)
        except UnfitNodes as error:
            raise self._wrong(error.node, error.what) from error
        partial = {*before.partial}
        for place, why in plan.full.items():
            if place in partial:
                reader = next(each.id for each in self._operators if each.id in plan.below(place.node))
                raise self._wrong(
                    reader,
                    f"it needs the full state of {in_words(place, plan.nodes)}, but this state is partial in "
                    f"the running query ({why}): read a base ({listed(_bases(before))}) through added "
                    f"operators instead",
                )
        for edge in plan.edges_to_full:
            if edge.consumer in self._places and edge.producer not in self._places:
                self._check_fed(edge.producer, edge.consumer, here)

    def _check_fed(self, id_: str, reader: str, here: set[str]) -> None:
        """Raise InvalidQuery if the rows so far of an operator are not known at its place."""
        node = self._before.nodes[id_]
        what = f"its state is full, so it needs all earlier rows of {carried(id_)}"
        if id_ not in here:
            raise self._wrong(
                reader, f"{what}, which are in another fragment; let it read a base in that other fragment"
            )
        if isinstance(node, Stream):
            raise self._wrong(reader, f"{what}, which is not a base, so its rows were not kept")
        if not isinstance(node, Base | JoinOperator | AggregateOperator | DistinctOperator):
            for child in children_of(node):
                self._check_fed(child, reader, here)

    def _wrong(self, operator: str, message: str, *field: str) -> InvalidQuery:
        index = self._places[operator]
        path: Location = ("operators", index, *field)
        type_ = next(each.type for each in self._operators if each.id == operator)
        mistakes: list[Mistake] = [self._marks.mistake(path, f"{type_} {operator}: {message}")]
        return InvalidQuery(mistakes)


def _inputs_first(operators: Sequence[AddedOperator]) -> list[AddedOperator]:
    by_id = {each.id: each for each in operators}
    inputs = {each.id: [child for child in each.children if child in by_id] for each in operators}
    return [by_id[id_] for id_ in bottom_up(inputs, *by_id)]


def _bases(plan: PartialPlan) -> list[str]:
    return [id_ for id_, node in plan.nodes.items() if isinstance(node, Base)]
