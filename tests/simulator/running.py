"""Seeds that are run, as many at a time as there are processors."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from . import processes, simulation
from .oracle import Violation
from .simulation import Report

LAYERS: dict[str, Callable[[int], Report]] = {"core": simulation.simulate, "runner": processes.simulate}
"""What of netchannel is run: its cores alone, or all that stands on them, through the public API."""
LONGEST_S = 120
"""What a run may take, on a machine however busy: most are over within a second."""


def attempt(layer: str, seed: int) -> Report | str:
    """The report, or what was violated. The process ends, and says where it is, if that takes minutes."""
    faulthandler.dump_traceback_later(LONGEST_S, exit=True, file=sys.__stderr__)
    try:
        return LAYERS[layer](seed)
    except Violation as error:
        return f"{error}\nagain: python -m tests.simulator --layer {layer} --first {seed} --seeds 1"
    finally:
        faulthandler.cancel_dump_traceback_later()


def run(seeds: Sequence[int], layer: str = "core") -> tuple[list[Report], list[str]]:
    """The reports of all seeds that went well, and what the others violated."""
    # Not forked: whoever runs tests has threads by then, and what a fork makes of what these are at is open.
    context = multiprocessing.get_context("forkserver")
    with ProcessPoolExecutor(min(os.cpu_count() or 1, len(seeds)), context) as pool:
        results = list(pool.map(partial(attempt, layer), seeds, chunksize=20))
    reports = [result for result in results if isinstance(result, Report)]
    return reports, [result for result in results if isinstance(result, str)]
