"""A placement as tables and as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from placement.plan import SourceOperator
from placement.stepped_plan import MemberFragment

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from placement import Decomposition, Exact, Fragment, Placement, Query
    from placement.partial.kept_rows import Kept
    from placement.plan import FragmentOperator
    from placement.stepped_plan import StepFragment, StepOperator, SteppedPlan


def as_json(query: Query, placement: Placement, decomposition: Decomposition) -> str:
    """Format a placement as one JSON object: query, operators' nodes, fragments, channels, state if it has views."""
    state = [asdict(kept) for kept in _kept(decomposition)]
    data = {
        "query": _query(query),
        "placement": dict(placement.nodes),
        "reasons": dict(placement.reasons),
        **({"state": state} if state else {}),
        "fragments": [
            fragment.model_dump(mode="json", by_alias=True, exclude={"late", "views"})
            for fragment in decomposition.fragments
        ],
        "channels": [
            {"id": channel.id, "operator": channel.operator, "from": channel.start, "to": channel.end}
            for channel in decomposition.channels
        ],
    }
    return json.dumps(data, indent=2)


def _query(query: Query) -> dict[str, Any]:
    """Format a query as in a query file."""
    operators = [
        {"id": each.id, "type": each.type} | each.model_dump(mode="json", exclude_defaults=True)
        for each in query.operators
    ]
    channels = query.channels.model_dump(mode="json", exclude_defaults=True)
    return {"operators": operators} | ({"channels": channels} if channels else {})


def as_text(placement: Placement, decomposition: Decomposition) -> str:
    """Format a placement as tables: operators with reasons, the state if it has views, fragments, channels."""
    operators = [
        (key, operator.type, placement.nodes[key], placement.reasons[key])
        for key, operator in placement.plan.operators.items()
    ]
    return "\n\n".join([table(("operator", "type", "node", "why"), operators), *_cut(decomposition)])


def explained(placement: Placement, decomposition: Decomposition) -> str:
    """Format a placement as `as_text` does, with each operator as SQL over its inputs."""
    operators = [
        (key, placement.nodes[key], placement.reasons[key], _sql(operator))
        for key, operator in placement.plan.operators.items()
    ]
    return "\n\n".join([table(("operator", "node", "why", "sql"), operators), *_cut(decomposition)])


def explained_in_steps(plan: SteppedPlan, fragments: Sequence[StepFragment], kept: Sequence[Kept]) -> str:
    """Format the operators of a query in steps as SQL, and the tables of `steps_as_text`."""
    operators = [(each.id, each.type, _sql(each)) for each in plan.operators]
    return "\n\n".join([table(("operator", "type", "sql"), operators), steps_as_text(fragments, kept)])


def _sql(operator: FragmentOperator | StepOperator) -> str:
    from placement.statements.plan_text import NotInSql, operator_sql
    from placement.stepped_plan import InputOperator

    if isinstance(operator, InputOperator):
        return operator_sql(SourceOperator(id=operator.id, logical=operator.logical))
    try:
        return operator_sql(operator)
    except NotInSql:
        return ""


def _cut(decomposition: Decomposition) -> Iterator[str]:
    """Yield the tables of a plan's state, fragments and channels."""
    fragments = [_described(fragment) for fragment in decomposition.fragments]
    header: tuple[str, ...] = ("fragment", "node", "engine", "operators")
    if not any(fragment.engine for fragment in decomposition.fragments):  # all have the embedded engine
        header, fragments = _without_engine(header), list(map(_without_engine, fragments))
    channels = [
        (channel.id, channel.operator, channel.start, channel.end) for channel in decomposition.channels
    ]
    yield from _state(_kept(decomposition))
    yield table(header, fragments)
    yield table(("channel", "carries", "from", "to"), channels)


def steps_as_json(query: Query, fragments: Sequence[StepFragment], kept: Sequence[Kept]) -> str:
    """Format a query in steps: the query, its members with sources and sinks, its coordinator, and its state."""
    data = {
        "query": _query(query),
        "members": [
            {"id": id_, "node": node, "reads": reads, "writes": writes}
            for id_, node, reads, writes in _members(fragments)
        ],
        "coordinator": {"id": fragments[-1].id, "node": fragments[-1].node},
        "state": [asdict(each) for each in kept],
    }
    return json.dumps(data, indent=2)


def steps_as_text(fragments: Sequence[StepFragment], kept: Sequence[Kept]) -> str:
    """Format members and coordinator with their nodes as a table, and the state of operators as another one."""
    rows = [
        (id_, node, ", ".join(reads), ", ".join(writes)) for id_, node, reads, writes in _members(fragments)
    ]
    rows.append((fragments[-1].id, fragments[-1].node, "", ""))
    return "\n\n".join([table(("fragment", "node", "reads", "writes"), rows), *_state(kept)])


def _members(fragments: Sequence[StepFragment]) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Yield each member's id and node, its sources, and its sinks."""
    for each in fragments:
        if isinstance(each, MemberFragment):
            reads = [feed.source.physical.reads for feed in each.feeds]
            yield each.id, each.node, reads, sorted(target.name for target in each.targets.values())


def _kept(decomposition: Decomposition) -> list[Kept]:
    fragment = decomposition.fragments[0]
    if not fragment.views:
        return []
    from placement.partial.kept_rows import kept_by
    from placement.partial.node_plan import planned_of

    return kept_by(planned_of(fragment))


def _state(kept: Sequence[Kept]) -> Iterator[str]:
    if kept:
        rows = [
            (
                each.operator if each.input is None else f"{each.operator}, of {each.input}",
                ", ".join(each.by),
                each.state,
                each.why,
            )
            for each in kept
        ]
        yield table(("state of", "by", "is", "why"), rows)


def _described(fragment: Fragment) -> tuple[str, ...]:
    engine = "embedded" if fragment.engine is None else f"spark {fragment.engine.master}"
    return fragment.id, fragment.node, engine, " ".join(operator.id for operator in fragment.operators)


def _without_engine(row: tuple[str, ...]) -> tuple[str, ...]:
    return (*row[:2], *row[3:])


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format rows as columns, each as wide as its widest cell."""
    if not rows:
        return f"no {header[0]}s"
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = (
        "  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (header, tuple("-" * width for width in widths), *rows)
    )
    return "\n".join(lines)


def comparison(first: Placement | None, exact: Exact, *, as_json: bool) -> str:
    """Compare the costs of both strategies; ``first`` is None if bottom-up found no room."""
    from placement.strategies.traffic import Traffic

    cost = None if first is None else Traffic.of(first.plan).cost(first)
    above = None if cost is None or not exact.cost else cost / exact.cost - 1
    if as_json:
        data = {
            "unit": exact.unit,
            "bottom-up": cost,
            "optimal": exact.cost,
            "bound": exact.bound,
            "above": 0.0 if cost == exact.cost else above,
        }
        return json.dumps(data, indent=2)
    if cost is None:
        shown, gap = "no room", ""
    else:
        shown, gap = (
            f"{cost:g}",
            "" if cost == exact.cost else "more" if above is None else f"{above:.1%} more",
        )
    rows = [("bottom-up", shown, gap), ("optimal", f"{exact.cost:g}", "")]
    if exact.gap:
        rows.append(("lower bound", f"{exact.bound:g}", f"{exact.gap:.1%} less"))
    return table(("strategy", exact.unit, "compared with optimal"), rows)
