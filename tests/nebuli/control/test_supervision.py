"""What whoever watches a query does about what its workers say, at moments that no real kill would hit."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import cast

import pytest

from nebuli.control.deployment import Active, fragments_of
from nebuli.control.errors import NodeUnreachable, QueryFailed, QueryLost
from nebuli.control.supervision import Policy, Supervisor
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.rpc.worker_client import WorkerClient, WorkerUnreachable
from placement import parse_query
from topology import Topology, parse_topology

QUERY = parse_query("""{"operators": [
    {"id": "numbers", "type": "source", "logical": "numbers"},
    {"id": "result", "type": "sink", "input": "numbers", "sink": "result"}
]}""")
TOPOLOGY = """
logical: [{name: numbers, schema: [{name: n, type: int64}]}]
nodes:
  - address: above:1
    links: {downstream: ["below:1"]}
    physical: [{logical: numbers, type: CSV, path: numbers.csv}]
  - address: below:1
    sinks: [{name: result, type: CSV, path: result.csv}]
"""
MODEL = parse_topology(TOPOLOGY)


class Told:
    """A worker that says of its only fragment what the test says, and what it was asked is known."""

    def __init__(self, status: FragmentStatus, asked: list[str]) -> None:
        self.status: FragmentStatus | None = status
        self.after_stop: FragmentStatus | None = None
        self._asked = asked

    async def statuses(self) -> list[FragmentStatus]:
        if self.status is None:
            raise WorkerUnreachable("gone")
        return [self.status]

    async def stop(self, id_: str, *, at_once: bool = False) -> None:
        self._asked.append(f"stop {id_}")
        self.status = self.after_stop or self.status

    async def unregister(self, id_: str) -> None:
        self._asked.append(f"unregister {id_}")

    async def register(self, fragment: object, id_: str) -> str:
        self._asked.append(f"register {id_}")
        raise WorkerUnreachable("nothing is to begin again")


class Scene:
    """Two such workers, and a query on them: source above, sink below."""

    def __init__(self, policy: Policy, model: Topology = MODEL) -> None:
        active = Active("first", (), fragments_of(QUERY, model, 0, "first"))
        self.asked: list[str] = []
        self.above, self.below = (
            Told(FragmentStatus(place.id, place.fragment, FragmentState.RUNNING), self.asked)
            for place in active.places
        )
        self.turn: Callable[[], None] = lambda: None
        self.supervisor = Supervisor(
            active,
            QUERY,
            model,
            self,
            seed=0,
            policy=policy,
            patience_s=0.0,
            say=lambda text: None,
            report=lambda fragment, status: self.turn(),
            moved=lambda active: None,
        )

    def client(self, node: str) -> WorkerClient:
        return cast("WorkerClient", {"above:1": self.above, "below:1": self.below}[node])

    async def prepare(self, nodes: Iterable[str]) -> None:
        """Nobody starts them again."""


def become(worker: Told, state: FragmentState, cause: Cause = Cause.NONE) -> FragmentStatus:
    assert worker.status is not None
    worker.status = replace(worker.status, state=state, cause=cause, error="said")
    return worker.status


@pytest.mark.parametrize("lasts_s", [0.005, 0.02, 0.2, 3.0])
async def test_the_end_of_a_query_is_seen_soon(lasts_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """After 10 ms and a quarter of its duration, or after 0.1 s, with at most 25 looks a second."""
    pauses: list[float] = []
    query = Scene(Policy.FAIL)

    async def sleep(delay_s: float) -> None:
        pauses.append(delay_s)
        if sum(pauses) >= lasts_s:
            become(query.above, FragmentState.FINISHED)
            become(query.below, FragmentState.FINISHED)

    monkeypatch.setattr("nebuli.control.supervision.asyncio.sleep", sleep)
    await query.supervisor.watch()
    assert sum(pauses) <= min(lasts_s * 1.25 + 0.01, lasts_s + 0.1)
    assert len(pauses) <= 25 * (lasts_s + 1)


@pytest.mark.parametrize("policy", Policy)
async def test_a_node_whose_fragments_have_finished_is_not_missed(policy: Policy) -> None:
    query = Scene(policy)
    become(query.above, FragmentState.FINISHED)
    turns = iter([lambda: None, lambda: setattr(query.above, "status", None)])

    def end_soon() -> None:
        next(turns, lambda: become(query.below, FragmentState.FINISHED))()

    query.turn = end_soon
    await query.supervisor.watch()
    assert not any(each.startswith("register") for each in query.asked)


async def test_a_query_whose_sink_has_all_does_not_begin_again() -> None:
    """It had a moment before it was to be stopped: else a sink that prints would print all twice."""
    query = Scene(Policy.WAIT)
    become(query.above, FragmentState.FAILED, Cause.LOST)
    assert query.below.status is not None
    query.below.after_stop = replace(query.below.status, state=FragmentState.FINISHED)
    await query.supervisor.watch()
    assert not any(each.startswith("register") for each in query.asked)


@pytest.mark.parametrize("mode", ["final", "changes", "append"])
async def test_rows_that_were_inserted_as_they_came_are_not_inserted_again(mode: str) -> None:
    """Only a result, which is inserted under the query's id, can be: the query begins again."""
    sink = f"{{name: result, type: Collection, store: store, collection: c, mode: {mode}}}"
    query = Scene(
        Policy.WAIT, parse_topology(TOPOLOGY.replace("{name: result, type: CSV, path: result.csv}", sink))
    )
    become(query.below, FragmentState.FAILED, Cause.LOST)
    assert query.above.status is not None
    query.above.after_stop = replace(query.above.status, state=FragmentState.STOPPED, cause=Cause.REQUEST)
    refused = rf"cannot start over: its sink result \(Collection, mode {mode}\) has already published rows"
    with pytest.raises(QueryLost, match="it was lost 3 times" if mode == "final" else refused):
        await query.supervisor.watch()
    assert any(each.startswith("register first.") for each in query.asked) == (mode == "final")


@pytest.mark.parametrize("cause", [Cause.REQUEST, Cause.INPUT, Cause.ITSELF])
async def test_who_is_to_blame_is_said_while_another_node_is_silent(cause: Cause) -> None:
    query = Scene(Policy.WAIT)
    become(query.above, FragmentState.FAILED, cause)
    query.below.status = None
    with pytest.raises(QueryFailed, match="fragment query/numbers at above:1 failed: said"):
        await query.supervisor.watch()


async def test_with_the_policy_to_fail_a_silent_node_is_named() -> None:
    query = Scene(Policy.FAIL)
    query.below.status = None
    with pytest.raises(NodeUnreachable, match="worker below:1 does not answer"):
        await query.supervisor.watch()
