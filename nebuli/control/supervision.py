"""A deployed query, watched to its end, and what is done when a node is lost."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import StrEnum
from typing import TYPE_CHECKING

import placement
from nebuli.control.deployment import Active, deploy, end, forget, fragments_of, statuses_of, stop
from nebuli.control.errors import SUSPECTS, NodeUnreachable, QueryFailed, QueryLost
from nebuli.exactness import unreplayable_sources
from nebuli.rpc.ids import new_deployment
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.rpc.worker_client import WorkerRefused, WorkerUnreachable
from placement.plan import BoundSink, BoundSource, Fragment, Late
from placement.stepped_plan import CoordinatorPlacement

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence

    from nebuli.control.deployment import Fleet, Place
    from placement import Query, StrategyName
    from placement.stepped_plan import AnyFragment
    from topology import Topology

__all__ = ["Policy", "Supervisor"]

_POLL_S = (0.01, 0.1)
"""The first pause between two looks at a query, and the longest: the end of a short query is seen at once."""
_LONGER = 1.1
_SETTLE_S = 5.0
_STOP_S = 10.0
_LOSSES = 3
_LOSSES_S = 60.0
"""A fragment that is lost so often in that time, takes its process along: to begin again is of no use."""
_LEFT_S = 5.0
"""How often it is tried to take away what is left of earlier deployments."""

_OWN_ENDS = (Cause.REQUEST, Cause.INPUT, Cause.ITSELF)
"""Causes that are not a consequence of another fragment's, nor of a node's that is lost."""


class Policy(StrEnum):
    """The policy of a query for the loss of a node.

    A node is lost if it does not answer, or was restarted without the memory of a fragment.
    """

    WAIT = "wait"
    """Wait for the node; what it had in memory is computed again, from the beginning."""
    FAIL = "fail"
    REPLACE = "replace"
    """Place the query again without the node, and begin from the beginning."""


class Supervisor:
    """Watches a query, and acts by its policy.

    ``report`` is called with every status that is seen, ``say`` with each action, and ``moved`` with each new
    deployment, before workers get it.

    ``patience_s``: for how long a node may be silent before it is replaced. ``first`` is the query's first deployment,
    if it is not ``active``: the process that deployed another one has started it, too, or was ended in the middle.
    ``followed`` returns the current deployment, if other processes may have changed its members.
    """

    def __init__(
        self,
        active: Active,
        query: Query,
        model: Topology,
        fleet: Fleet,
        *,
        seed: int,
        strategy: StrategyName = "bottom-up",
        policy: Policy,
        patience_s: float,
        say: Callable[[str], None],
        report: Callable[[AnyFragment, FragmentStatus], None],
        moved: Callable[[Active], None],
        first: str = "",
        late: Late = Late.COUNT,
        followed: Callable[[], Awaitable[Active]] | None = None,
    ) -> None:
        self._active = active
        self._followed = followed
        self._query = query
        self._model = model
        self._fleet = fleet
        self._seed = seed
        self._strategy = strategy
        self._policy = policy
        self._patience_s = patience_s
        self._say = say
        self._report = report
        self._moved = moved
        self._late = late
        self._first = first or active.deployment
        self._left = active.left
        self._left_asked_at = 0.0
        self._lost_at: dict[str, deque[float]] = {}
        self._finished: dict[str, FragmentStatus] = {}  # which they are for good, also where a node is silent
        self._silent_since: dict[str, float] = {}
        self._settling_since: float | None = None

    @property
    def nodes(self) -> frozenset[str]:
        """The nodes that the query runs on now."""
        return frozenset(fragment.node for fragment in self._active.fragments)

    @property
    def active(self) -> Active:
        """The query as it is deployed now."""
        return self._active

    def keep(self, active: Active) -> None:
        """Watch the same deployment, of which something else is known now."""
        assert active.deployment == self._active.deployment, "it has begun again"
        self._active = active

    async def watch(self) -> None:
        """Return when the query has finished. Raises QueryFailed, QueryLost or NodeUnreachable; then all is stopped."""
        pause_s, longest_s = _POLL_S
        try:
            while not await self._turn():  # what is waited for is at other machines
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * _LONGER, longest_s)
        except (QueryFailed, QueryLost, NodeUnreachable, WorkerRefused):
            await stop((*self._active.places, *self._left), self._fleet)
            raise
        await self._take_away_left()

    async def _turn(self) -> bool:
        """Look once, and act; whether the query has finished."""
        if self._left and asyncio.get_running_loop().time() - self._left_asked_at >= _LEFT_S:
            await self._take_away_left()
        found = await statuses_of(self._active.places, self._fleet)
        known = {each.fragment: each for each in found if isinstance(each, FragmentStatus)} | self._finished
        self._finished = {id_: each for id_, each in known.items() if _is_finished(each)}
        for fragment in self._active.fragments:
            if fragment.id in known:
                self._report(fragment, known[fragment.id])
        if _is_finished(known.get(self._active.root.id)):
            return await self._are_all_done(known.values())
        has_ended = any(each.state.is_final and not _is_finished(each) for each in known.values())
        if has_ended and await self._has_other_members():
            return False
        if any(each.cause in _OWN_ENDS for each in known.values()):  # whatever else is lost, it is over
            await self._judge(list(known.values()))
            return False
        silent = {each.node for each in self._active.fragments if each.id not in known}
        await self._answer_silence(silent)
        if not silent:
            lost = [each for each in known.values() if self._is_lost(each)]
            await (self._lost(lost) if lost else self._judge(list(known.values())))
        return False

    async def _has_other_members(self) -> bool:
        """True if ended members were replaced by others, in a query in steps; these are watched from now on."""
        if self._followed is None or not isinstance(self._active.root, CoordinatorPlacement):
            return False
        active = await self._followed()
        if active.fragments == self._active.fragments:
            return False
        self._active, self._left = active, active.left
        self._finished, self._settling_since = {}, None
        self._say(f"the query continues with {len(active.fragments) - 1} members")
        return True

    async def _are_all_done(self, statuses: Iterable[FragmentStatus]) -> bool:
        """True if all are over, now that the sink has all, and the rest is notified.

        A silent node is not waited for.
        """
        now = asyncio.get_running_loop().time()
        self._settling_since = self._settling_since or now
        statuses = list(statuses)
        over = len(statuses) == len(self._active.fragments) and all(each.state.is_final for each in statuses)
        if not over and now - self._settling_since < _SETTLE_S:
            return False
        await stop(self._active.places, self._fleet)
        return True

    async def _judge(self, statuses: list[FragmentStatus]) -> None:
        """Raise QueryFailed if a fragment has failed, once it is known which was the first."""
        ended_badly = [
            each
            for each in statuses
            if each.state.is_final and not _is_finished(each) and each.cause is not Cause.LOST
        ]
        if not ended_badly:
            self._settling_since = None
            return
        now = asyncio.get_running_loop().time()
        self._settling_since = self._settling_since or now
        if all(each.state.is_final for each in statuses) or now - self._settling_since >= _SETTLE_S:
            first = min(ended_badly, key=lambda status: SUSPECTS.index(status.cause))
            raise QueryFailed(first, self._node_of(first))

    def _is_lost(self, status: FragmentStatus) -> bool:
        """True if a fragment is lost, also if it was not started although all others were started over."""
        never = status.state is FragmentState.REGISTERED and self._active.deployment != self._first
        return never or status.cause is Cause.LOST

    async def _lost(self, lost: list[FragmentStatus]) -> None:
        what = "; ".join(
            f"fragment {each.fragment} at {self._node_of(each)}: {each.error or 'it was not started'}"
            for each in lost
        )
        if self._policy is Policy.FAIL:
            raise QueryLost(f"{what} (the policy is to fail)")
        now = asyncio.get_running_loop().time()
        for each in lost:
            times = self._lost_at.setdefault(each.fragment, deque(maxlen=_LOSSES))
            times.append(now)
            if len(times) == _LOSSES and now - times[0] <= _LOSSES_S:
                raise QueryLost(f"{what}; it was lost {_LOSSES} times within {_LOSSES_S:.0f} s")
        await self._begin_again(self._active.without, what)

    async def _answer_silence(self, silent: Collection[str]) -> None:
        now = asyncio.get_running_loop().time()
        for node in [node for node in self._silent_since if node not in silent]:
            del self._silent_since[node]
            if node in self.nodes:  # another one has taken its place, and it is no longer asked
                self._say(f"worker {node} is back")
        for node in silent:
            if node not in self._silent_since:
                self._silent_since[node] = now
                self._say(f"worker {node} does not answer")
        if not silent:
            return
        if self._policy is Policy.FAIL:
            raise NodeUnreachable(
                f"worker {', '.join(sorted(silent))} does not answer (the policy is to fail)"
            )
        if self._policy is Policy.WAIT:
            await self._fleet.prepare(silent)
            return
        gone = [node for node in silent if now - self._silent_since[node] >= self._patience_s]
        if gone:
            without = tuple(sorted({*self._active.without, *gone}))
            await self._begin_again(without, f"worker {', '.join(sorted(gone))} does not answer")

    async def _begin_again(self, without: tuple[str, ...], why: str) -> None:
        """Deploy again, from the beginning of all sources. Raises QueryLost if that is not possible."""
        self._check_repeatable(why)
        self._check_not_pinned(set(without) - set(self._active.without), why)
        deployment = new_deployment(self._first)
        before = self._active if self._followed is None else await self._followed()
        try:
            fragments = fragments_of(
                self._query,
                self._model,
                self._seed,
                deployment,
                without,
                strategy=self._strategy,
                say=self._say,
                late=self._late,
            )
            fragments = _with_added(fragments, before.fragments)
        except placement.PlacementError as error:
            raise QueryLost(f"{why}; and the query cannot be placed on the other nodes: {error}") from error
        if not await self._end_of_old():
            return
        self._say(f"{why}: the query starts over, as deployment {deployment}")
        await self._fleet.prepare({fragment.node for fragment in fragments})
        self._active = Active(deployment, without, fragments, self._left)
        self._settling_since = None
        self._finished = {}
        self._moved(self._active)  # first: even if this process ends, the workers' fragments are recorded
        try:
            await deploy(self._active, self._fleet)
        except WorkerUnreachable as error:
            # Another one has gone meanwhile: the next turn finds the silent ones, and fragments that are missing or
            # were not started.
            self._say(f"{error}; trying again")

    def _check_repeatable(self, why: str) -> None:
        if unreplayable := list(unreplayable_sources(self._active.fragments)):
            raise QueryLost(
                f"{why}; the query cannot start over: {', '.join(unreplayable)} cannot be read again"
            )
        target = self._active.root.operators[-1]
        if isinstance(target, BoundSink) and target.target.mode != "final" and not target.target.begins_anew:
            raise QueryLost(
                f"{why}; the query cannot start over: its sink {target.sink} "
                f"({target.target.type}, mode {target.target.mode}) has already published rows; "
                f"mode final publishes them at the end"
            )

    def _check_not_pinned(self, gone: Collection[str], why: str) -> None:
        for fragment in self._active.fragments:
            for operator in fragment.operators:
                if fragment.node in gone and isinstance(operator, BoundSource | BoundSink):
                    what = "source" if isinstance(operator, BoundSource) else "sink"
                    raise QueryLost(
                        f"{why}; the query cannot be placed on the other nodes: only node "
                        f"{fragment.node} has {what} {operator.id}"
                    )

    async def _end_of_old(self) -> bool:
        """End what is left of the deployment, before another one writes to the same places.

        False if it is not over as it was thought to be: its sink has all, or does not answer.
        """
        places = self._active.places
        found = await end(places, self._fleet, _STOP_S)
        root = found[places[-1]]
        if isinstance(root, WorkerUnreachable) or _is_finished(root):
            return False
        if running := [place for place, each in found.items() if _is_running(each)]:
            names = ", ".join(f"{each.fragment} at {each.node}" for each in running)
            raise QueryLost(
                f"the query cannot start over: {names} did not stop within {_STOP_S:.0f} s, and "
                f"two deployments would write to the same place"
            )
        self._left = (*self._left, *await self._not_forgotten(places))
        return True

    async def _take_away_left(self) -> None:
        """Remove remains of earlier deployments: their nodes may be back."""
        await stop(self._left, self._fleet)
        self._left = tuple(await self._not_forgotten(self._left))
        self._left_asked_at = asyncio.get_running_loop().time()

    async def _not_forgotten(self, places: Sequence[Place]) -> list[Place]:
        errors = await forget(places, self._fleet)
        return [place for place, error in zip(places, errors, strict=True) if error is not None]

    def _node_of(self, status: FragmentStatus) -> str:
        return next(fragment.node for fragment in self._active.fragments if fragment.id == status.fragment)


def _with_added(fragments: tuple[Fragment, ...], before: Sequence[AnyFragment]) -> tuple[Fragment, ...]:
    """Return a newly placed query, with the views that were added ``before``. Raises PlacementError."""
    if not isinstance(before[0], Fragment) or not before[0].added:
        return fragments
    from placement.partial.view_additions import carried_over  # which most queries do without

    return carried_over(fragments, before[0].added)


def _is_finished(status: FragmentStatus | None) -> bool:
    return status is not None and status.state is FragmentState.FINISHED


def _is_running(status: FragmentStatus | WorkerUnreachable) -> bool:
    return isinstance(status, FragmentStatus) and not status.state.is_final
