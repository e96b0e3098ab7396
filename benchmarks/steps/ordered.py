"""How long a step takes that a coordinator orders: two members, each a process, and no rows."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

from benchmarks.spark.session import cpu_s
from benchmarks.work import Result, Work
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol import messages as say
from nebuli.steps.protocol.triggers import TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import parse_query
from topology import parse_topology

from .asking import QUERY, TOPOLOGY
from .percentiles import percentiles

MEMBERS = 2
WARM_UP = 200
NO_SPACING = TriggerSettings(tick_s=sys.float_info.min, checkpoint_s=None)
"""The clock makes a step as soon as the one before is done: no clock tells so short a tick from none."""
FOLDERS = {"memory": Path("/dev/shm"), "disk": None}  # noqa: S108 - what is made there is a folder of its own


async def ordered_steps(work: Work, _: str) -> Result:
    """``p50_ms`` and others: from one order to the next; ``cpu_us_per_step``: of coordinator and members together."""
    steps = work.options["steps"]
    with tempfile.TemporaryDirectory(dir=FOLDERS[work.options["state"]]) as name:
        folder = Path(name)
        topology = parse_topology(TOPOLOGY, "topology.yaml")
        query = stepped_query(parse_query(QUERY, "ordered", "query.json"), topology, MEMBERS, folder)
        async with LocalRun(query, folder / "state", folder, NO_SPACING) as run:
            await _ordered(run, WARM_UP)
            before = cpu_s()
            times = await _ordered(run, steps + 1)
            used = cpu_s() - before
    took = [after - ordered for ordered, after in pairwise(times)]
    return Result(steps, percentiles(took) | {"cpu_us_per_step": used / steps * 1e6})


async def _ordered(run: LocalRun, steps: int) -> list[float]:
    """When each of so many steps was ordered: that is when member 0 is told, and member 1 right after it."""
    line = run.coordinator.lines[0]
    tell, times = line.tell, list[float]()
    all_ordered = asyncio.Event()

    def tell_in_time(message: say.FromCoordinator) -> None:
        if isinstance(message, say.Step):
            times.append(time.perf_counter())
            if len(times) >= steps:
                all_ordered.set()
        tell(message)

    with patch.object(line, "tell", tell_in_time):
        await all_ordered.wait()
    return times[:steps]
