"""A query on workers of this machine, under supervision, of which a test kills some."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nebuli.control.deployment import Active, deploy, fragments_of
from nebuli.control.local import LocalWorkers
from nebuli.control.supervision import Policy, Supervisor
from nebuli.rpc.status import FragmentStatus
from placement import Fragment, load_query
from tests.support.waiting import until_async
from topology import load_topology


@dataclass
class Watched:
    """``nodes`` are addresses by the names that the test gives them.

    ``seen`` are the last statuses by node, of what is there alone, and ``fragments`` by the fragments' ids.
    """

    workers: LocalWorkers
    supervisor: Supervisor
    nodes: dict[str, str]
    said: list[str] = field(default_factory=list)
    seen: dict[str, FragmentStatus] = field(default_factory=dict)
    fragments: dict[str, FragmentStatus] = field(default_factory=dict)
    deployments: list[str] = field(default_factory=list)
    _killed: set[int] = field(default_factory=set)  # of which a status may still be reported

    async def kill_at(self, node: str, rows: int) -> None:
        """Kill the worker, once its fragment has read so many rows in its present process, and before it has ended."""
        address = self.nodes[node]

        async def has_read() -> FragmentStatus | None:
            status = self.seen.get(address)
            return status if status and status.rows_in >= rows and status.pid not in self._killed else None

        status = await until_async(has_read, f"{node} has read {rows} rows", 60.0)
        assert not status.state.is_final, (
            f"{node} had ended before it was killed, after {status.rows_in} rows"
        )
        self._killed.add(status.pid)
        self.workers.workers[address].kill()
        await self.workers.workers[address].died()
        del self.seen[address]

    async def finish(self, *kills: Coroutine[Any, Any, None]) -> None:
        """Watch the query to its end, while workers are killed; all of them are. Raises what the supervisor raises."""
        try:
            async with asyncio.timeout(240), asyncio.TaskGroup() as group:
                group.create_task(self.supervisor.watch())
                for kill in kills:
                    group.create_task(kill)
        except BaseExceptionGroup as error:
            raise error.exceptions[0] from None


@asynccontextmanager
async def watched(
    directory: Path,
    topology: dict[str, Any],
    query: dict[str, Any],
    policy: Policy,
    nodes: dict[str, str],
) -> AsyncIterator[Watched]:
    """Deploy the query, and leave nothing behind."""
    (directory / "topology.yaml").write_text(yaml.safe_dump(topology, sort_keys=False), "utf-8")
    (directory / "query.json").write_text(json.dumps(query), "utf-8")
    model, plan = load_topology(directory / "topology.yaml"), load_query(directory / "query.json")
    active = Active("first", (), fragments_of(plan, model, 0, "first"))
    said: list[str] = []
    async with LocalWorkers(model.nodes, directory) as workers:

        def report(fragment: Fragment, status: FragmentStatus) -> None:
            found.seen[fragment.node] = found.fragments[fragment.id] = status

        await deploy(active, workers)
        supervisor = Supervisor(
            active,
            plan,
            model,
            workers,
            seed=0,
            policy=policy,
            patience_s=0.0,
            say=said.append,
            report=report,
            moved=lambda active: found.deployments.append(active.deployment),
        )
        found = Watched(workers, supervisor, nodes, said)
        yield found
