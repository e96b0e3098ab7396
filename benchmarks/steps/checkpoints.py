"""What a checkpoint of a large state takes, and what steps notice of it."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Coroutine, Generator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.work import Result, Work
from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.steps.saved_runs import Saved
from nebuli.steps.member.saved_state import SavedState
from nebuli.store import Store

from .circuits import circuit_of, rows_of, shuffled, step
from .percentiles import percentiles

ROW_BYTES = 48
"""Of the join's state: four columns, the weight and the hash."""
BUILDING_ROWS = 100_000
DELTA_ROWS = 1_000
WARM_UP = 100
DATABASE = "member 0"


async def checkpoint(work: Work, _: str) -> Result:
    """That of a state of so many bytes; or the one after it, so many steps later."""
    after = work.options["after"]
    with tempfile.TemporaryDirectory() as folder:
        async with Store.at(folder) as store:
            stepping = _Stepping(_filled(work.options["bytes"]))
            state = SavedState(store.state_store(DATABASE))
            await state.open(0)
            if after:
                saved = stepping.circuit.save()
                await _written(state, saved)
                for _ in range(after):
                    stepping.step()
            quiet = [stepping.step() for _ in range(work.options["quiet_steps"])]
            before = _sizes(folder)
            measures = await _measured(stepping, state)
            new = sum(size for name, size in _sizes(folder).items() if name not in before)
    measures |= {"written_MB": new / 1e6, "quiet_longest_ms": max(quiet) * 1e3}
    return Result(1, measures | percentiles(quiet, "quiet_"))


def _sizes(folder: str) -> dict[str, int]:
    """Of the values that are files."""
    return {path.name: path.stat().st_size for path in Path(folder, "blobs").rglob("*") if path.is_file()}


def _filled(size: int) -> SteppedCircuit:
    circuit = circuit_of("join")
    for keys in shuffled(size // ROW_BYTES, BUILDING_ROWS):
        step(circuit, {"right": rows_of("right", keys), "left": rows_of("left", np.array([-1]))})
    return circuit


class _Stepping:
    """Small steps, one after the other."""

    def __init__(self, circuit: SteppedCircuit) -> None:
        self.circuit = circuit
        self._number = 0
        for _ in range(WARM_UP):
            self.step()

    def step(self) -> float:
        """Compute one, whose rows each find one in the state, and are kept; how long it took, in seconds."""
        began = time.perf_counter()
        keys = np.arange(self._number * DELTA_ROWS, (self._number + 1) * DELTA_ROWS)
        step(self.circuit, {"right": rows_of("right", keys[:1]), "left": rows_of("left", keys)})
        self._number += 1
        return time.perf_counter() - began


async def _written(state: SavedState, saved: Saved) -> None:
    """As a member writes it."""
    await state.write(saved, 0)
    await state.commit()
    saved.kept()


async def _measured(stepping: _Stepping, state: SavedState) -> dict[str, float]:
    """``blocked_ms`` is all that the loop's thread does for it, as no step can be computed meanwhile.

    The steps beside it are computed on the loop's thread, as members do.
    """
    began = time.perf_counter()
    saved = stepping.circuit.save()
    save_s = time.perf_counter() - began
    loop, timed = asyncio.get_running_loop(), _Timed()
    loop.set_task_factory(timed.task)
    writing = loop.create_task(_written(state, saved))
    times = []
    while not writing.done():
        before = time.perf_counter()
        stepping.step()
        await asyncio.sleep(0)
        times.append(time.perf_counter() - before)
    loop.set_task_factory(None)
    await writing
    return {
        "blocked_ms": (save_s + timed.seconds) * 1e3,
        "longest_ms": max(times) * 1e3,
        "writing_s": sum(times),
        **percentiles(times),
    }


class _Timed:
    """Adds up how long tasks are at work on the loop's thread; none of them is cancelled."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def task(
        self, loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, Any], **options: Any
    ) -> asyncio.Task[Any]:
        """A task factory."""
        return asyncio.Task(_awaited(_Parts(work, self)), loop=loop, **options)


class _Parts:
    """A coroutine's work, from one time that it waits to the next."""

    def __init__(self, work: Coroutine[Any, Any, Any], timed: _Timed) -> None:
        self._work = work
        self._timed = timed

    def __await__(self) -> Generator[Any, Any, Any]:
        while True:
            began = time.perf_counter()
            try:
                waits_for = self._work.send(None)
            except StopIteration as ended:
                return ended.value
            finally:
                self._timed.seconds += time.perf_counter() - began
            yield waits_for


async def _awaited(parts: _Parts) -> Any:
    return await parts
