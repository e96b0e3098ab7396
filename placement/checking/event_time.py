"""Event time in a plan: where watermarks begin, and what they close.

A window's time column is followed down to where it comes from: from there on a watermark travels with the rows, so
that each source has its own and a union takes the least. Its window columns are followed up: an operator whose key
holds one of them is done with a window once the watermark has passed the window's end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from placement.checking.schemas import WINDOW_COLUMNS, joined_names, plain_columns
from placement.durations import microseconds
from placement.graph import bottom_up
from placement.plan import (
    AggregateOperator,
    BoundSink,
    BoundSource,
    Closing,
    DistinctOperator,
    FilterOperator,
    JoinOperator,
    ProjectOperator,
    UnionOperator,
    ViewOperator,
    WatermarkOrigin,
    WindowOperator,
)

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

    from placement.checking.schemas import Fault
    from placement.plan import FragmentOperator
    from placement.stepped_plan import InputOperator
    from topology.schema import Schema

    PlanOperator = FragmentOperator | InputOperator


@dataclass(frozen=True, slots=True)
class WindowColumn:
    """A column with the window of a row: its start or, ``size`` later, its end; in microseconds."""

    size: int
    slide: int
    is_start: bool

    @property
    def to_end(self) -> int:
        """Amount to add to the column for the end of the window."""
        return self.size if self.is_start else 0


class EventTimes:
    """Built up operator by operator, inputs first; ``schemas`` may grow meanwhile."""

    def __init__(self, operators: Mapping[str, PlanOperator], schemas: Mapping[str, Schema]) -> None:
        self._operators = operators
        self._schemas = schemas
        self._columns: dict[str, dict[str, WindowColumn]] = {}
        self._windows: dict[str, list[str]] = {}  # by operator: the windows at and below it
        self._retracting: dict[str, bool] = {}
        self.origins: dict[str, WatermarkOrigin] = {}
        self.closings: dict[str, Closing] = {}

    def add(self, operator: PlanOperator, faults: list[Fault]) -> None:
        """Take the next operator, whose columns are right; adds what is wrong with its event time to ``faults``."""
        children = operator.children
        below = list(dict.fromkeys(window for child in children for window in self._windows[child]))
        self._windows[operator.id] = [operator.id] if isinstance(operator, WindowOperator) else below
        self._columns[operator.id] = self._window_columns(operator)
        if isinstance(operator, WindowOperator):
            self._add_window(operator, below, faults)
        if isinstance(operator, JoinOperator | AggregateOperator | DistinctOperator):
            self._add_closing(operator)
        retracting = any(self._retracting[child] for child in children)
        if operator.id in self.closings and not isinstance(operator, JoinOperator):
            retracting = False  # each window is given once
        self._retracting[operator.id] = retracting or begins_to_retract(operator, self.closings)

    def only_grows(self, operator: str) -> bool:
        """True if an operator retracts no row."""
        return not self._retracting[operator]

    def retracting(self, operator: str) -> list[str]:
        """The sources, aggregates and joins because of which ``operator`` retracts rows; none if it does not."""
        inputs = {
            key: [
                child for child in self._operators[key].children if is_retracting and self._retracting[child]
            ]
            for key, is_retracting in self._retracting.items()
        }
        below = bottom_up(inputs, operator) if self._retracting.get(operator) else []
        return [key for key in below if begins_to_retract(self._operators[key], self.closings)]

    def _add_window(self, window: WindowOperator, below: Sequence[str], faults: list[Fault]) -> None:
        if below:
            message = (
                f"{window.input} already has windows of {', '.join(below)}; expected an input without windows"
            )
            faults.append((("input",), message))
            return
        for operator, column in self._sources_of(window.input, window.time, faults):
            origin = WatermarkOrigin(
                operator=operator, time=column, lateness=window.lateness, idle_after=window.idle_after
            )
            other = self.origins.setdefault(operator, origin)
            if _settings(other) != _settings(origin):
                message = (
                    f"the watermark of {operator} already follows {_said(other)}, but this window "
                    f"needs it to follow {_said(origin)}"
                )
                faults.append((("time",), f"{message}; read the rows through a separate source operator"))

    def _sources_of(self, operator: str, column: str, faults: list[Fault]) -> Iterator[tuple[str, str]]:
        """Where the values of a column come from unchanged: operators, and what they call it."""
        stack = [(operator, column)]
        seen: set[tuple[str, str]] = set()
        while stack:
            key, name = at = stack.pop()
            if at in seen:
                continue
            seen.add(at)
            if isinstance(aggregate := self._operators[key], AggregateOperator) and name not in aggregate.by:
                message = (
                    f"{name!r} is a result of aggregate {key}, so its values change; expected a 'by' "
                    f"column of that aggregate"
                )
                faults.append((("time",), message))
            elif below := self._below(key, name):
                stack += reversed(below)
            else:
                yield key, name

    def _below(self, operator: str, column: str) -> list[tuple[str, str]]:
        """The inputs that an operator has a column from unchanged, with its name there."""
        match self._operators[operator]:
            case (
                FilterOperator(input=child)
                | DistinctOperator(input=child)
                | AggregateOperator(input=child)
                | ViewOperator(input=child)
            ):
                return [(child, column)]
            case UnionOperator(inputs=children):
                return [(child, column) for child in children]
            case ProjectOperator(input=child) as project:
                renamed = plain_columns(project, self._schemas[child]).get(column)
                return [] if renamed is None else [(child, renamed)]
            case JoinOperator() as join:
                return list(self._inputs_of(join, column))
        return []

    def _inputs_of(self, join: JoinOperator, column: str) -> Iterator[tuple[str, str]]:
        """The inputs that a join has a column from, with its name there: of a key all of them."""
        if column in join.on:
            yield from ((child, column) for child in join.inputs)
            return
        for child, names in zip(join.inputs, self._joined_names(join), strict=True):
            yield from ((child, mine) for mine, given in names.items() if given == column)

    def _joined_names(self, join: JoinOperator) -> list[dict[str, str]]:
        inputs = [self._schemas[child] for child in join.inputs]
        return joined_names(join.on, inputs, self._schemas[join.id])

    def _window_columns(  # noqa: PLR0911 - one per kind
        self, operator: PlanOperator
    ) -> dict[str, WindowColumn]:
        """Return the columns of an operator's output with the window of a row."""
        match operator:
            case WindowOperator():
                size, slide = microseconds(operator.size), microseconds(operator.slide or operator.size)
                start, end = WINDOW_COLUMNS
                return {
                    start: WindowColumn(size, slide, is_start=True),
                    end: WindowColumn(size, slide, is_start=False),
                }
            case (
                FilterOperator(input=child)
                | DistinctOperator(input=child)
                | ViewOperator(input=child)
                | BoundSink(input=child)
            ):
                return self._columns[child]
            case ProjectOperator(input=child) as project:
                return _renamed(self._columns[child], plain_columns(project, self._schemas[child]))
            case AggregateOperator(input=child):
                return _renamed(self._columns[child], {name: name for name in operator.by})
            case UnionOperator(inputs=children):
                return _common(self._columns[child] for child in children)
            case JoinOperator():
                return self._joined_columns(operator)
        return {}

    def _joined_columns(self, join: JoinOperator) -> dict[str, WindowColumn]:
        """The window columns of a join: keys that are a window's in all inputs with some, and columns of the only one.

        With another input that has windows, rows of an old window may still meet a partner: it does not close. Nor
        where the key was computed there: that input's watermark does not apply to it. Nor where all rows are to be
        given of an input without windows, which has no time after which a row is late. Columns that may be null do not
        count.
        """
        found: dict[str, WindowColumn] = {}
        with_windows = [child for child in join.inputs if self._windows[child]]
        timeless = [port for port in join.preserved if join.inputs[port] not in with_windows]
        for key in join.on if not timeless else ():
            kinds = {self._columns[child].get(key) for child in with_windows}
            kind = kinds.pop() if len(kinds) == 1 else None
            if kind is not None:
                found[key] = kind
        if len(with_windows) == 1 and (port := join.inputs.index(with_windows[0])) not in join.nullable:
            names = self._joined_names(join)[port]
            columns = self._columns[with_windows[0]]
            found |= _renamed(columns, {given: mine for mine, given in names.items()})
        return found

    def _add_closing(self, operator: JoinOperator | AggregateOperator | DistinctOperator) -> None:
        match operator:
            case JoinOperator(on=keys) | AggregateOperator(by=keys):
                columns = {key: self._columns[operator.id].get(key) for key in keys}
            case _:
                columns = dict(self._columns[operator.id])
        for name, column in columns.items():
            if column is not None:
                self.closings[operator.id] = Closing(
                    operator=operator.id, column=name, to_end_us=column.to_end, slide_us=column.slide
                )
                return


def begins_to_retract(operator: PlanOperator, closings: Container[str]) -> bool:
    """True if an operator retracts rows that it has emitted, though none of its inputs does."""
    match operator:
        case BoundSource():
            return operator.physical.retracts
        case AggregateOperator():
            return operator.id not in closings
        case JoinOperator():
            return operator.how != "inner" and operator.id not in closings
    return False


def _settings(origin: WatermarkOrigin) -> tuple[str, int, int | None]:
    idle_after = None if origin.idle_after is None else microseconds(origin.idle_after)
    return origin.time, microseconds(origin.lateness), idle_after


def _said(origin: WatermarkOrigin) -> str:
    return f"{origin.time!r} (lateness {origin.lateness}, idle_after {origin.idle_after or 'none'})"


def _renamed(columns: Mapping[str, WindowColumn], names: Mapping[str, str]) -> dict[str, WindowColumn]:
    """The columns by their new names; ``names`` are the old ones by the new ones, of these and other columns."""
    return {new: columns[old] for new, old in names.items() if old in columns}


def _common(columns: Iterable[Mapping[str, WindowColumn]]) -> dict[str, WindowColumn]:
    first, *others = columns
    return {name: kind for name, kind in first.items() if all(each.get(name) == kind for each in others)}
