"""State from so many members to another number of them: the member of each row, and their new state.

Rows of a state with equal keys are at one member, before and after. So the runs of a new member are parts of those of
the old ones, each in the order in which that one had them, and nothing is merged or computed again. As runs never
change, they are transferred while steps continue; their counting parts are sent between two steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import merge
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from nebuli.dataflow import hashing
from nebuli.dataflow.errors import StateDamaged
from nebuli.dataflow.state import Run
from nebuli.dataflow.steps.exchange_parts import owners_of
from nebuli.dataflow.steps.origins import is_of_source
from nebuli.dataflow.steps.saved_runs import manifest_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from nebuli.dataflow.steps.member_operators import StepNode
    from nebuli.dataflow.steps.saved_runs import Tables
    from placement.stepped_plan import SteppedPlan
    from placement.steps.whereabouts import Division

    Numbers = Mapping[str, Mapping[str, int | None]]
    """State of operators other than rows, by operator."""
    Part = tuple[str, int]
    """The name of a part of a run, and how many rows it has."""
    Counting = Mapping[str, Sequence[tuple[Sequence[Part], Sequence[Part]]]]
    """The counting parts of those that a member was given, by operator: for each of its states, those that were looked
    up in, and those that were not yet."""


@dataclass(frozen=True, slots=True)
class Given:
    """A part of a run of an operator's state, with a name that no other part has."""

    operator: str
    run: Run


class Sharing:
    """The state of one member for each member of another plan: its part of every run, once."""

    def __init__(
        self, nodes: Iterable[StepNode], member: int, plan: SteppedPlan, divisions: Mapping[str, Division]
    ) -> None:
        self._nodes = list(nodes)
        self._members = plan.members
        # Rows that no keys divide can be anywhere.
        self._divisions = {node.id: divisions.get(node.id, member % plan.members) for node in self._nodes}
        self._parts: dict[bytes, Mapping[int, Part]] = {}
        """The members of the parts of divided runs, by the runs' names."""

    def uncut(self) -> list[tuple[StepNode, Run]]:
        """The runs that there are now and were not cut yet; asked for at any time, also in a step."""
        return [
            (node, run)
            for node in self._nodes
            for state in node.operator.states
            for runs in state.runs
            for run in runs
            if run.name not in self._parts
        ]

    def cut(self, node: StepNode, run: Run) -> list[tuple[int, Given]]:
        """The part of each member that has one. By any thread, one after the other."""
        parts = list(_parts(run, node, self._divisions[node.id], self._members))
        self._parts[run.name] = {to: (part.name.decode(), len(part.hashes)) for to, part in parts}
        return [(to, Given(node.id, part)) for to, part in parts]

    def counting(self) -> Sequence[Counting]:
        """Return the parts that count now, for each member. Between two steps, when all runs are cut."""
        return [
            {
                node.id: [
                    (self._of(to, settled), self._of(to, fresh))
                    for settled, fresh in (state.runs for state in node.operator.states)
                ]
                for node in self._nodes
            }
            for to in range(self._members)
        ]

    def _of(self, to: int, runs: Sequence[Run]) -> list[Part]:
        parts = [self._parts[run.name] for run in runs]
        return [each[to] for each in parts if to in each]


def _parts(run: Run, node: StepNode, division: Division, members: int) -> Iterator[tuple[int, Run]]:
    if isinstance(division, int):
        yield division, Run(run.rows, run.hashes)
        return
    columns = [run.rows.column(node.operator.kept_as(key)) for key in division]
    owners = owners_of(hashing.hash_rows(columns, run.rows.num_rows), members)
    if bool((owners[1:] >= owners[:-1]).all()):  # the rows lie in the order of this very hash
        bounds = np.searchsorted(owners, np.arange(members + 1)).tolist()
        for to, (start, stop) in enumerate(pairwise(bounds)):
            if start < stop:
                yield to, Run(run.rows.slice(start, stop - start), run.hashes[start:stop])
        return
    for to in range(members):
        places = np.flatnonzero(owners == to)
        if len(places):
            yield to, Run(run.rows.take(pa.array(places)), run.hashes[places])


def put_together(
    nodes: Iterable[StepNode], member: int, counting: Sequence[Counting], numbers: Sequence[Numbers]
) -> Tables:
    """The manifests of a state that is, of what each of the old members has given, what counts, and what they knew.

    Raises StateDamaged for state that belongs to no operator.
    """
    tables: Tables = {}
    for node in nodes:
        states: list[list[list[str]]] = []
        for index, _ in enumerate(node.operator.states):
            kinds = zip(*(each[node.id][index] for each in counting), strict=True)
            states.append([[name for name, _ in _longest_first(parts)] for parts in kinds])
        tables[node.id] = manifest_of(states, _combined(node, member, [each[node.id] for each in numbers]))
    for operator in {operator for each in counting for operator in each} - tables.keys():
        raise StateDamaged(operator, "a part of its state", "no operator of the circuit has such a state")
    return tables


def _longest_first(parts: Iterable[Sequence[Part]]) -> list[Part]:
    """All parts, those of one member in their order: of these the newer are the shorter ones."""
    return list(merge(*parts, key=lambda part: -part[1]))


def _combined(
    node: StepNode, member: int, numbers: Sequence[Mapping[str, int | None]]
) -> dict[str, int | None]:
    names = {name: None for each in numbers for name in each}  # a source is one member's
    return {name: _one(name, member, [each.get(name) for each in numbers]) for name in names}


def _one(name: str, member: int, values: Sequence[int | None]) -> int | None:
    known = [each for each in values if each is not None]
    match name:
        case "late_rows" | "rows_without_time":  # each was counted by one member
            return sum(known) if member == 0 else 0
        case "complete":  # if one has not all rows, none has
            return min(known)
        case "passed":  # counted from an end that each member chose for itself
            return None
        case "watermark" | "told" | "reached" | "given" | "beyond" | "an_end" | "others" | "greatest":
            return max(known, default=None)
        case _ if is_of_source(name):
            return max(known, default=None)
    raise AssertionError(f"cannot merge the members' {name}")
