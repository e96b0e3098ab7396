"""A query in steps, with what its members are to read: worked out from a query, a topology and a number of members."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nebuli.dataflow.steps.fingerprint import fingerprint_of
from nebuli.dataflow.steps.plan_differences import changes, described, differences
from nebuli.limits import MOST_MEMBERS
from nebuli.steps.errors import ClaimDamaged, StateOfAnother
from nebuli.steps.member.inputs.matching_files import is_pattern, matching
from nebuli.store.notes import sealed, unsealed
from placement import check_stepped, distribute
from placement.plan import BoundSource
from placement.stepped_plan import TIME, Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from placement import Query, SteppedPlan
    from placement.stepped_plan import InputOperator
    from topology import PhysicalSource, SinkConnector, Topology

FORMAT = 6
CLAIM = "query.json"
"""The file of a state folder with the record of its query."""
_DIGEST = 16
_NAMED = 5
"""Sources that an error names."""
_HERE = Path()


@dataclass(frozen=True, slots=True)
class SteppedQuery:
    """``feeds`` has what each member reads, in their order. ``external`` inputs have no source: they are pushed into.

    An input with several physical sources, or files that match a pattern, comes in at all members, which have them in
    turn, and so does an external one, with each producer at one member; any other comes in at one member, and its rows
    are divided after that. All that is dated is read by one member, which gives steps their times. ``given`` is what is
    read of each input, and ``alone`` the plan for one member: what is divided over any number of them.
    """

    alone: SteppedPlan
    plan: SteppedPlan
    given: Mapping[str, tuple[Feed, ...]]
    feeds: tuple[tuple[Feed, ...], ...]
    external: tuple[str, ...]
    spread: frozenset[str]

    @classmethod
    def divided(
        cls, alone: SteppedPlan, members: int, given: Mapping[str, tuple[Feed, ...]], spread: frozenset[str]
    ) -> SteppedQuery:
        """Over so many members; inputs in ``spread`` come in at all of them."""
        plan = distribute(alone, members, spread)
        feeds: list[list[Feed]] = [[] for _ in range(members)]
        for operator in plan.inputs:
            for index, feed in enumerate(given[operator.id]):
                member = index % members if operator.id in spread else plan.homes[operator.id]
                if feed.source.physical.dated:
                    member = plan.homes.get(TIME, 0)
                feeds[member].append(feed)
        external = tuple(sorted(key for key, each in given.items() if not each))
        return cls(alone, plan, given, tuple(map(tuple, feeds)), external, spread)

    def over(self, members: int) -> SteppedQuery:
        """The same query over so many members."""
        return self.divided(self.alone, members, self.given, self.spread)

    @property
    def grows(self) -> bool:
        """True if a later run may have rows to read that this one has not."""
        return bool(self.external) or any(feed.source.physical.grows for feed in self._all_feeds)

    @property
    def ends(self) -> bool:
        """True if it ends on its own, once all of its sources have."""
        return not self.external and all(feed.source.physical.ends == "always" for feed in self._all_feeds)

    @property
    def _all_feeds(self) -> Iterator[Feed]:
        return (feed for feeds in self.given.values() for feed in feeds)

    @property
    def circuit(self) -> str:
        """The name of the circuit in the ids of its channels."""
        return f"circuit-{self.fingerprint[:_DIGEST]}"

    @property
    def fingerprint(self) -> str:
        """A value that is the same for queries that can continue from the same state."""
        return fingerprint_of(self.plan)

    @property
    def targets(self) -> Mapping[str, SinkConnector]:
        """The sinks of the outputs."""
        return {each.id: each.target for each in self.plan.outputs}

    def claim(self, generation: int) -> bytes:
        """The record in a state folder that belongs to this query."""
        return sealed({**self._claim(), "generation": generation})

    def _claim(self) -> Claim:
        feeds = [feed for feeds in self.feeds for feed in feeds]
        return {
            "format": FORMAT,
            "members": self.plan.members,
            "query": self.fingerprint,
            "operators": described(self.plan),
            "sources": [[feed.name for feed in feeds] for feeds in self.feeds],
            "reads": [feed.source.physical.reads for feed in feeds],
            "settings": [feed.source.physical.model_dump(mode="json", by_alias=True) for feed in feeds],
        }

    def claimed(self, said: bytes, where: str) -> tuple[SteppedQuery, int]:
        """The query over as many members as have kept what is at a place, and how many times others had before.

        ``said`` is the record of its query. Raises StateOfAnother, ClaimDamaged.
        """
        there = _read_claim(said, f"{where}/{CLAIM}")
        members, generation = there.get("members"), there.get("generation")
        query = self
        if isinstance(members, int) and 0 < members <= MOST_MEMBERS and members != self.plan.members:
            query = self.over(members)
        own = query._claim()  # noqa: SLF001 - the same query's
        for key, (what, shown) in _WHAT.items():
            if there.get(key) != own[key]:
                raise StateOfAnother(where, what, shown(there, own))
        if not isinstance(generation, int) or not isinstance(members, int):
            raise ClaimDamaged(f"{where}/{CLAIM}", "it does not list the members with saved state")
        return query, generation


Claim = dict[str, Any]


def _format(there: Claim, here: Claim) -> str:
    return f"{there.get('format')} in the state, {here['format']} in this version"


def _operators(there: Claim, here: Claim) -> str:
    return differences(there.get("operators", ()), here["operators"])


def _sources(there: Claim, here: Claim) -> str:
    """Which are new, and which are gone; where none is, what else is different."""
    before: list[str] = there.get("reads") or []
    now: list[str] = here["reads"]
    new, gone = Counter(now) - Counter(before), Counter(before) - Counter(now)
    found = [
        f"{_some(names)} {'is' if len(names) == 1 else 'are'} {what}"
        for names, what in (
            (sorted(new.elements()), "new"),
            (sorted(gone.elements()), "no longer among them"),
        )
        if names
    ]
    if found:
        return "; ".join(found)
    if before != now:
        return f"their order differs: {_some(before)} in the state, {_some(now)} in this run"
    changed = [
        f"{reads} had {text}"
        for reads, *settings in zip(now, there.get("settings", ()), here["settings"], strict=False)
        for text in changes(*settings)
    ]
    return "; ".join(changed) or "other members read them"


def _some(names: Sequence[str]) -> str:
    """The first of them: a pattern may match thousands."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


_WHAT: dict[str, tuple[str, Callable[[Claim, Claim], str]]] = {
    "format": ("format", _format),
    "query": ("query", _operators),
    "sources": ("list of sources", _sources),
}


def _read_claim(said: bytes, name: str) -> dict[str, Any]:
    try:
        return unsealed(said)
    except ValueError as error:
        raise ClaimDamaged(name, str(error)) from error


def stepped_query(query: Query, topology: Topology, members: int, directory: Path = _HERE) -> SteppedQuery:
    """The query for so many members. ``directory`` is where paths of sources start. Raises InvalidQuery, InputError."""
    plan = check_stepped(query, topology)
    given = {each.id: [source for _, source in attached(each, topology)] for each in plan.inputs}
    spread = frozenset(
        key
        for key, sources in given.items()
        if len(sources) != 1 or any(each.dated or is_pattern(each, directory) for each in sources)
    )
    feeds = {
        each.id: tuple(
            feeds_of(each, [file for source in given[each.id] for file in matching(source, directory)])
        )
        for each in plan.inputs
    }
    return SteppedQuery.divided(plan, members, feeds, spread)


def attached(operator: InputOperator, topology: Topology) -> list[tuple[str, PhysicalSource]]:
    """The physical sources of an input, each with its node's address."""
    return [
        (node.address, physical)
        for node in topology.nodes
        for physical in node.physical
        if physical.logical == operator.logical
    ]


def feeds_of(operator: InputOperator, sources: Sequence[PhysicalSource]) -> list[Feed]:
    """Return the sources of an input.

    Each is named by what its settings say, so that the log's record of one is never taken for another's.
    """
    alike: Counter[str] = Counter()
    feeds = []
    for physical in sources:
        settings = json.dumps(physical.model_dump(mode="json", by_alias=True), sort_keys=True)
        digest = hashlib.sha256(settings.encode()).hexdigest()[:_DIGEST]
        feeds.append(
            Feed(
                input=operator.id,
                name=f"{operator.id}/{digest}/{alike[digest]}",
                source=BoundSource(
                    id=operator.id, logical=operator.logical, schema=operator.columns, physical=physical
                ),
            )
        )
        alike[digest] += 1
    return feeds
