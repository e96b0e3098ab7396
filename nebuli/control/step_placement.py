"""Where the members of a query in steps run: at the nodes whose sources they read and whose sinks they write to."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from nebuli.limits import DEFAULT_KEEP_OUTPUT_BYTES
from nebuli.steps.member.inputs.matching_files import may_be_pattern
from nebuli.steps.stepped_query import attached, feeds_of
from placement import InvalidQuery, check_stepped, distribute
from placement.stepped_plan import TIME, CoordinatorPlacement, Feed, MemberFragment, Share
from topology import Mistake

if TYPE_CHECKING:
    from collections.abc import Sequence

    from placement import Query, SteppedPlan
    from placement.stepped_plan import StepFragment
    from topology import Topology

__all__ = ["step_fragments"]


def step_fragments(
    query: Query,
    topology: Topology,
    members: int | None,
    circuit: str,
    checkpoint_s: float,
    *,
    keep_output_bytes: int | None = DEFAULT_KEEP_OUTPUT_BYTES,
    closes: bool = False,
) -> tuple[StepFragment, ...]:
    """Return the members, and after them the coordinator, at the node of the first sink or view. Raises InvalidQuery.

    Inputs that nothing is attached to are for programs to push into. ``closes``: event time ends at the end of all
    inputs, even if a later run may have more of them.

    Each node with a source or a sink of the query has a member at least, and additional requested ones go to them in
    turn: rows are divided by their keys, regardless of their reader.
    """
    plan = check_stepped(query, topology)
    nodes = _nodes(plan, topology)
    if members is not None and members < len(nodes):
        raise InvalidQuery([Mistake(_too_few(members, nodes))])
    used = list(dict.fromkeys(nodes))
    nodes += [used[number % len(used)] for number in range((members or 0) - len(nodes))]
    plan = distribute(plan, len(nodes), {each.id for each in plan.inputs})
    _check_dated(plan, topology)
    feeds = _feeds(plan, topology, nodes)
    external = tuple(sorted(each.id for each in plan.inputs if not attached(each, topology)))
    sources = [feed.source.physical for some in feeds.values() for feed in some]
    ends = not external and all(each.ends == "always" for each in sources)
    made: list[StepFragment] = [
        MemberFragment(
            id=f"{query.name}/member-{member}",
            node=node,
            circuit=circuit,
            plan=plan,
            external=external,
            member=member,
            feeds=tuple(feeds[member]),
            keep_output_bytes=keep_output_bytes,
            awaits_growth=ends and not closes,
        )
        for member, node in enumerate(nodes)
    ]
    made.append(
        CoordinatorPlacement(
            id=f"{query.name}/coordinator",
            node=nodes[0],
            circuit=circuit,
            plan=plan,
            external=external,
            addresses=tuple(nodes),
            checkpoint_s=checkpoint_s,
            closes=closes or not (external or any(each.grows for each in sources)),
        )
    )
    return tuple(made)


def _nodes(plan: SteppedPlan, topology: Topology) -> list[str]:
    """The nodes of the members that there have to be: those of the sinks first, as outputs have their homes in turn.

    After them those that views name: a view is read at the first of all nodes. Where nothing names one,
    it is the topology's first.
    """
    at = {sink.name: node.address for node in topology.nodes for sink in node.sinks}
    late = plan.late_outputs
    sinks = sorted((each for each in plan.outputs if each.id not in late), key=lambda output: output.id)
    nodes = [at[each.sink] for each in sinks]
    nodes += dict.fromkeys(
        each.node for each in plan.views if each.node is not None and each.node not in nodes
    )
    for operator in plan.inputs:
        for node, _ in attached(operator, topology):
            if node not in nodes:  # which may have several sources
                nodes.append(node)
    return nodes or [topology.nodes[0].address]


def _check_dated(plan: SteppedPlan, topology: Topology) -> None:
    """Raise InvalidQuery where no one member is at all that is dated: each step has one time."""
    at = {sink.name: node.address for node in topology.nodes for sink in node.sinks}
    places = {f"sink {each.sink}": at[each.sink] for each in plan.outputs if each.target.dated}
    for operator in plan.inputs:
        places |= {each.reads: node for node, each in attached(operator, topology) if each.dated}
    if len({*places.values()}) > 1:
        found = ", ".join(f"{name} at {node}" for name, node in places.items())
        raise InvalidQuery(
            [
                Mistake(
                    f"all collections of a query in steps must be at one node, because one member sets the "
                    f"time of each step, and reads and writes all of them; this query's collections are at "
                    f"several nodes: {found}; attach them to one node"
                )
            ]
        )


def _feeds(plan: SteppedPlan, topology: Topology, nodes: Sequence[str]) -> dict[int, list[Feed]]:
    """Return the inputs of each member: its node's sources, in turn with the other members there.

    A share of patterns.
    """
    feeds: dict[int, list[Feed]] = defaultdict(list)
    for operator in plan.inputs:
        sources = attached(operator, topology)
        given: dict[str, int] = defaultdict(int)
        for (node, physical), feed in zip(
            sources, feeds_of(operator, [each for _, each in sources]), strict=True
        ):
            here = [member for member, address in enumerate(nodes) if address == node]
            if physical.dated:
                feeds[plan.homes.get(TIME, here[0])].append(feed)
                continue
            if may_be_pattern(physical):
                for number, member in enumerate(here):
                    share = Share(number=number, of=len(here))
                    feeds[member].append(feed.model_copy(update={"share": share}))
                continue
            feeds[here[given[node] % len(here)]].append(feed)
            given[node] += 1
    return feeds


def _too_few(members: int, nodes: Sequence[str]) -> str:
    return (
        f"{members} member{'s are' if members > 1 else ' is'} too few: each sink, and each node "
        f"with a source, needs its own member ({', '.join(nodes)}); use --members {len(nodes)} or "
        f"more, or leave --members out"
    )
