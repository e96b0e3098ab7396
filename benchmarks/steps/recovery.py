"""How long steps stand still when a member is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.work import Result, Work
from nebuli.steps.local.local_run import LocalRun
from nebuli.steps.protocol import events as ev
from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
from nebuli.steps.stepped_query import stepped_query
from placement import load_query
from topology import load_topology

from .queries import MEMBERS, prepared

LOOK_S = 0.001
AT_ONCE_S = 60.0


class _Heard:
    """What a coordinator has ordered, and when it was the last time."""

    def __init__(self) -> None:
        self.checkpoints = 0
        self.epochs = 0
        self.step = 0
        self.at = 0.0

    def hear(self, order: ev.Order) -> None:
        match order:
            case ev.CheckpointMade():
                self.checkpoints += 1
            case ev.EpochRuns(_, step):
                self.epochs += 1
                self.step, self.at = step, time.perf_counter()
            case _:
                pass


async def killed_member(work: Work, _: str) -> Result:
    """One of two is killed behind a checkpoint, when some steps more are done.

    ``resumed_s``: until all members have opened the checkpoint, and steps go on; ``caught_up_s``: until those are done
    again that had been, which are replayed, and a new one.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        files = prepared(folder, work.options)
        query = stepped_query(load_query(files.query), load_topology(files.topology), MEMBERS, folder)
        heard = _Heard()
        settings = TriggerSettings(checkpoint_s=work.options["checkpoint_s"], spacing_s=SPACING_S)
        async with LocalRun(query, folder / "state", folder, settings, observe=heard.hear) as run:
            await _until(lambda: heard.checkpoints > 0)
            behind = run.coordinator.done + work.options["behind"]
            await _until(lambda: run.coordinator.done >= behind)
            process = run.members.process(MEMBERS - 1)
            assert process is not None
            killed = time.perf_counter()
            os.kill(process, signal.SIGKILL)
            done = run.coordinator.done
            await _until(lambda: heard.epochs > 1)
            resumed, step = heard.at, heard.step
            await _until(lambda: run.coordinator.done > done)
            caught_up = time.perf_counter()
    measures = {
        "resumed_s": resumed - killed,
        "caught_up_s": caught_up - killed,
        "replayed_steps": float(done - step),
    }
    return Result(1, measures)


async def _until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(AT_ONCE_S):
        while not is_so():  # noqa: ASYNC110 - nobody says when a step is done
            await asyncio.sleep(LOOK_S)
