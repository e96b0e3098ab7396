"""Exact placement: the one with the least traffic over links, by integer programming.

The model
    ``x[o, n]`` is 1 where operator ``o`` is on node ``n``, and ``f[e, l]`` how much of edge ``e`` goes over link
    ``l``. Each operator has one node, sources and the sink that of the topology; a node has no more operators than
    its capacity; at each node, the flow of an edge that comes in or begins there continues or ends there. The objective
    is the least sum over edges and links of ``weight * f``, where an edge's weight is its bytes per second if all
    sources have a rate, and 1 if not. Links with a bandwidth carry no more than that, where rates are known.

    Only nodes count that the sources below an operator reach and that reach the sink's node. For whole ``x`` and no
    bandwidth, the cheapest flows are shortest paths, so that only ``x`` need be whole.

HiGHS solves it, and reports how far from a proof it stopped. It starts from the bottom-up placement. The time limit
counts for the building of the model too, and a model that would take gigabytes is not built.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, chain, count, pairwise
from typing import TYPE_CHECKING, Any

from placement.errors import NoCapacity
from placement.plan import BoundSource
from placement.strategies.bottom_up import Placement, place_bottom_up, why_pinned
from placement.strategies.roots import rooted
from placement.strategies.traffic import Traffic
from topology.graph import link_graph

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from placement.checking.binding import BoundPlan
    from topology import Topology

    Link = tuple[str, str]

TIME_LIMIT_S = 10.0
"""How long it may take by default."""
_TOLERANCE = 1e-6
_MOST_VARIABLES = 2_000_000
"""About a gigabyte, in this process and in the solver."""


class _GivenUp(Exception):
    """The model is not built; the message has the reason."""


@dataclass(frozen=True, slots=True)
class Exact:
    """A placement, what it costs, and a proven lower bound.

    ``unit`` names the cost.
    """

    placement: Placement
    cost: float
    bound: float
    unit: str

    @property
    def gap(self) -> float:
        """How far the cost may be above the least one, in parts of it; 0 where it is proven to be that."""
        return max(0.0, self.cost - self.bound) / self.cost if self.cost else 0.0

    def __str__(self) -> str:
        if self.gap == 0:
            return f"{self.cost:g} {self.unit}, and no placement has less"
        bound = f"{self.bound:g} ({self.gap:.0%} below)"
        return (
            f"{self.cost:g} {self.unit}; no placement has less than {bound}: more time may find a "
            f"better placement"
        )


def place_exactly(
    plan: BoundPlan, topology: Topology, seed: int = 0, time_limit_s: float = TIME_LIMIT_S
) -> Exact:
    """The placement with the least traffic that is found within ``time_limit_s`` seconds.

    Raises ``NoPath``, ``NoCommonAncestor``, and ``NoCapacity`` if there is no placement, or none was found in time.
    """
    try:
        first = place_bottom_up(plan, topology, seed)
    except NoCapacity as error:
        return improve(plan, topology, None, str(error), time_limit_s)
    return improve(plan, topology, first, "", time_limit_s)


def improve(
    plan: BoundPlan, topology: Topology, first: Placement | None, reason: str, time_limit_s: float
) -> Exact:
    """Return the best placement found in time, beginning with bottom-up's; without it, ``reason`` explains why.

    Raises ``NoCapacity`` if there is no placement, or none was found in time.
    """
    began = time.monotonic()
    plan = rooted(plan, topology)
    model = _Model(plan, topology)
    if first is not None and (narrow := model.overloaded(first)):
        first, reason = None, f"bottom-up, which ignores bandwidths, sends {narrow}"
    if first is not None and model.traffic.cost(first) == 0:
        return Exact(first, 0.0, 0.0, model.traffic.unit)
    model.check_candidates(reason)
    why = f"no placement was found within {time_limit_s:g} s, though one may exist"
    try:
        model.build(began + time_limit_s)
        if found := model.solve(first, reason, began + time_limit_s):
            return found
    except _GivenUp as error:
        why = f"{why}: {error}"
    if first is None:
        raise NoCapacity(_joined(why, reason))
    return Exact(first, model.traffic.cost(first), 0.0, model.traffic.unit)


class _Model:
    """Variables by number: first those of operators on nodes, then those of edges on links."""

    def __init__(self, plan: BoundPlan, topology: Topology) -> None:
        self.plan = plan
        self.traffic = Traffic.of(plan)
        self._graph = link_graph(topology)
        self._capacity = {node.address: node.capacity for node in topology.nodes}
        self._bandwidth: dict[Link, float] = {
            (node.address, end): limits.bandwidth
            for node in topology.nodes
            for end, limits in node.links.limits.items()
            if limits.bandwidth is not None and self.traffic.unit != "hops"
        }
        self._candidates = self._find_candidates()
        self._x: dict[tuple[str, str], int] = {}
        self._f: dict[str, dict[Link, int]] = {}
        self._columns = 0
        self._rows: list[tuple[float, float, list[tuple[int, float]]]] = []

    def check_candidates(self, reason: str) -> None:
        """Raise NoCapacity if an operator has no node at all."""
        if not all(self._candidates.values()):
            raise NoCapacity(_joined(self._missing(), reason))

    def _find_candidates(self) -> dict[str, Sequence[str]]:
        """Return the possible nodes of each operator.

        After all sources below it, and before the root, if that has a pin.
        """
        import networkx as nx

        plan = self.plan
        end = plan.pins.get(plan.root)
        before_end = set(self._graph) if end is None else nx.ancestors(self._graph, end) | {end}
        behind = {
            node: (nx.descendants(self._graph, node) | {node}) & before_end
            for node in set(plan.pins.values())
        }
        of_nodes = {node: frozenset(found) for node, found in behind.items()}
        meeting: Callable[[frozenset[frozenset[str]]], frozenset[str]] = cache(
            lambda sets: frozenset.intersection(*sets)
        )
        with_room: Callable[[frozenset[str]], list[str]] = cache(
            lambda nodes: [node for node in self._graph if node in nodes and self._capacity[node] != 0]
        )
        common: dict[str, frozenset[str]] = {}
        candidates: dict[str, Sequence[str]] = {}
        for key, operator in plan.operators.items():
            if isinstance(operator, BoundSource):
                common[key] = of_nodes[plan.pins[key]]
            else:
                common[key] = meeting(frozenset(common[child] for child in operator.children))
            candidates[key] = [plan.pins[key]] if key in plan.pins else with_room(common[key])
        return candidates

    def _links_of(self, child: str) -> Iterator[Link]:
        """Over which links the output of ``child`` may go."""
        import networkx as nx

        starts, ends = self._candidates[child], self._candidates[self.plan.readers[child]]
        onward = set(chain.from_iterable(nx.bfs_layers(self._graph, starts)))
        back = set(chain.from_iterable(nx.bfs_layers(self._graph.reverse(copy=False), ends)))
        yield from ((start, end) for start, end in self._graph.edges if start in onward and end in back)

    # -- rows

    def _require(self, lower: float, upper: float, terms: Iterable[tuple[int, float]]) -> None:
        self._rows.append((lower, upper, list(terms)))

    def build(self, deadline: float) -> None:
        """Make the variables and rows. Raises _GivenUp where that takes longer, or too much memory."""
        plan = self.plan
        self._number(deadline)
        for key, nodes in self._candidates.items():
            self._require(1, 1, ((self._x[key, node], 1) for node in nodes))
        self._build_capacity()
        for child, reader in plan.readers.items():
            _check_time(deadline)
            self._build_flow(child, reader)
        for link, bandwidth in self._bandwidth.items():
            terms = [
                (numbers[link], self.traffic.weights[child])
                for child, numbers in self._f.items()
                if link in numbers
            ]
            if terms:
                self._require(-math.inf, bandwidth, terms)

    def _number(self, deadline: float) -> None:
        """Give each variable its number."""
        pairs = sum(map(len, self._candidates.values()))
        if pairs > _MOST_VARIABLES:
            raise _GivenUp(f"there are {pairs:,} pairs of operator and node, more than {_MOST_VARIABLES:,}")
        numbers = count()
        self._x = {(key, node): next(numbers) for key, nodes in self._candidates.items() for node in nodes}
        for child in self.plan.readers:
            _check_time(deadline)
            self._f[child] = {link: next(numbers) for link in self._links_of(child)}
            links = sum(map(len, self._f.values()))
            if links > _MOST_VARIABLES:
                raise _GivenUp(f"there are more than {_MOST_VARIABLES:,} pairs of edge and link")
        self._columns = next(numbers)

    def _build_capacity(self) -> None:
        movable = [key for key in self._candidates if key not in self.plan.pins]
        for node, capacity in self._capacity.items():
            terms = [(self._x[key, node], 1.0) for key in movable if (key, node) in self._x]
            if capacity is not None and len(terms) > capacity:
                self._require(-math.inf, capacity, terms)

    def _build_flow(self, child: str, reader: str) -> None:
        balance: dict[str, list[tuple[int, float]]] = {}
        for (start, end), number in self._f[child].items():
            balance.setdefault(start, []).append((number, 1.0))
            balance.setdefault(end, []).append((number, -1.0))
        for key, sign in ((child, -1.0), (reader, 1.0)):
            for node in self._candidates[key]:
                balance.setdefault(node, []).append((self._x[key, node], sign))
        for terms in balance.values():
            self._require(0, 0, terms)

    # -- solving

    def overloaded(self, placement: Placement) -> str:
        """Return the traffic of a placement over links that cannot carry it; empty if all can."""
        carried: Counter[Link] = Counter()
        for child, path in placement.paths.items():
            carried.update(dict.fromkeys(pairwise(path), self.traffic.weights[child]))
        return _first(
            f"{carried[link]:g} bytes/s over {' -> '.join(link)}, whose bandwidth is {bandwidth:g}"
            for link, bandwidth in self._bandwidth.items()
            if carried[link] > bandwidth
        )

    def solve(self, first: Placement | None, reason: str, deadline: float) -> Exact | None:
        """The best that is found in time, beginning with ``first``; None if nothing is.

        Raises NoCapacity if there is none; ``reason`` has an additional remark.
        """
        import highspy

        solver = highspy.Highs()
        solver.silent()
        solver.setOptionValue("mip_rel_gap", 0.0)
        solver.passModel(self._lp(highspy))
        if first is not None:
            with suppress(KeyError):  # a path of the first may leave what the model looks at
                self._start(solver, highspy, first)
        solver.setOptionValue("time_limit", max(0.0, deadline - time.monotonic()))
        solver.run()
        info = solver.getInfo()
        if solver.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
            raise NoCapacity(_joined(self._missing(), reason))
        found = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
        if not found:
            return None
        placement = self._placement(solver.getSolution().col_value)
        if first is not None and self.traffic.cost(first) <= self.traffic.cost(placement) * (1 + _TOLERANCE):
            placement = first  # of equal ones that which filters at the sources, and not any
        cost = self.traffic.cost(placement)
        bound = max(0.0, min(cost, float(info.mip_dual_bound)))  # minus infinity where nothing was proven
        if cost - bound < _TOLERANCE * max(1.0, cost):
            bound = cost
        return Exact(placement, cost, bound, self.traffic.unit)

    def _lp(self, highspy: Any) -> Any:
        columns, rows = self._columns, len(self._rows)
        lp = highspy.HighsLp()
        lp.num_col_, lp.num_row_ = columns, rows
        cost = [0.0] * columns
        for child, numbers in self._f.items():
            for number in numbers.values():
                cost[number] = self.traffic.weights[child]
        lp.col_cost_ = cost
        lp.col_lower_, lp.col_upper_ = [0.0] * columns, [1.0] * columns
        lp.row_lower_ = [lower for lower, _, _ in self._rows]
        lp.row_upper_ = [upper for _, upper, _ in self._rows]
        lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
        lp.a_matrix_.start_ = list(accumulate((len(terms) for _, _, terms in self._rows), initial=0))
        lp.a_matrix_.index_ = [number for _, _, terms in self._rows for number, _ in terms]
        lp.a_matrix_.value_ = [value for _, _, terms in self._rows for _, value in terms]
        kinds = [highspy.HighsVarType.kInteger] * len(self._x)
        flows = highspy.HighsVarType.kInteger if self._bandwidth else highspy.HighsVarType.kContinuous
        lp.integrality_ = kinds + [flows] * (columns - len(self._x))
        return lp

    def _start(self, solver: Any, highspy: Any, first: Placement) -> None:
        values = [0.0] * self._columns
        for key, node in first.nodes.items():
            values[self._x[key, node]] = 1
        for child, path in first.paths.items():
            for link in pairwise(path):
                values[self._f[child][link]] = 1
        solution = highspy.HighsSolution()
        solution.col_value = values
        solver.setSolution(solution)

    def _placement(self, values: Sequence[float]) -> Placement:
        nodes = {
            key: max(candidates, key=lambda node: values[self._x[key, node]])
            for key, candidates in self._candidates.items()
        }
        paths = {child: self._path(child, nodes, values) for child in self.plan.readers}
        return Placement(self.plan, nodes, self._reasons(nodes, paths), paths)

    def _path(self, child: str, nodes: Mapping[str, str], values: Any) -> tuple[str, ...]:
        import networkx as nx

        start, end = nodes[child], nodes[self.plan.readers[child]]
        used: nx.DiGraph[str] = nx.DiGraph(
            [link for link, number in self._f[child].items() if values[number] > 0.5]
        )
        used.add_node(start)
        graph = used if end in used and nx.has_path(used, start, end) else self._graph
        return tuple(nx.shortest_path(graph, start, end))

    def _reasons(self, nodes: Mapping[str, str], paths: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
        reasons: dict[str, str] = {}
        for key, operator in self.plan.operators.items():
            if key in self.plan.pins:
                reasons[key] = why_pinned(operator)
                continue
            came = ", ".join(f"{child} over {_links(paths[child])}" for child in operator.children)
            gives = f", sends its output over {_links(paths[key])}" if key in paths else ""
            reasons[key] = f"least traffic: reads {came}{gives}"
        return reasons

    def _missing(self) -> str:
        """Which slots there are too few of, and where; and which links carry less than all traffic."""
        movable = [key for key in self._candidates if key not in self.plan.pins]
        nowhere = [key for key in movable if not self._candidates[key]]
        end = self.plan.operators[self.plan.root].type
        if nowhere:
            return f"{_first(nowhere)}: every node after the sources and before the {end} has capacity 0"
        counts = Counter(node for key in movable for node in self._candidates[key])
        slots = _first(
            (
                f"{node} ({'any number' if self._capacity[node] is None else self._capacity[node]})"
                for node in counts
            ),
            most=20,
        )
        missing = []
        if movable:
            missing.append(
                f"{len(movable)} operators need a slot each, on nodes from their sources to the "
                f"{end}; these nodes have {slots}, and links lead one way only: raise a capacity, or add a link"
            )
        (top,) = self.plan.operators[self.plan.root].children
        total = self.traffic.weights[top]
        narrow = _first(
            f"{' -> '.join(link)} ({bandwidth:g})"
            for link, bandwidth in self._bandwidth.items()
            if bandwidth < total
        )
        if narrow:
            missing.append(
                f"all sources together give {total:g} bytes/s, but some links have less "
                f"bandwidth, {narrow}: raise the bandwidth, or add a link"
            )
        return f"no placement has room: {'; '.join(missing)}"


def _joined(what: str, reason: str) -> str:
    return f"{what}; {reason}" if reason else what


def _check_time(deadline: float) -> None:
    if time.monotonic() > deadline:
        raise _GivenUp("the time limit passed before the model was built")


def _first(parts: Iterable[str], most: int = 5) -> str:
    found = list(parts)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more


def _links(path: tuple[str, ...]) -> str:
    count = len(path) - 1
    return "no link" if count == 0 else f"{count} link{'s' if count > 1 else ''}"
