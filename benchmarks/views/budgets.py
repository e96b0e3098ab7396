"""What is left of hits when a view may hold a tenth of what it would with all keys."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import numpy as np
import psutil

from benchmarks.running import Failed
from benchmarks.work import Result, Work
from nebuli.dataflow.partial import Budget, ViewBudget, at_random, least_recently_used

from .graphs import CHAIN, FULL, Numbers, bytes_beside_bases, check, events, fill, loaded
from .timing import Clock
from .zipf import drawn, rank

EXPONENT = 1.1
PART = 10
WRITES = 0.05
AT_ONCE = 500
MB = 1e6


def hits(work: Work, _: str) -> Result:
    """Read by Zipf's law, and write now and then; the state is held to its budget after each.

    Of the same reads some are of the hottest tenth: so many are hits where that is there and nothing else ever is.
    """
    keys, times = work.options["keys"], work.options["reads"]
    max_bytes = bytes_beside_bases(loaded(FULL, keys, 1)) // PART
    pick = at_random(0) if work.options["at_random"] else least_recently_used
    budget = Budget(max_bytes, {"view": ViewBudget(pick=pick)})
    graph = loaded(CHAIN, keys, 1)
    for some in _portions(drawn(keys, work.options["before"], EXPONENT, seed=1)):
        fill(graph, np.unique(some))
        budget.enforce(graph)
        graph.drain()
    clock, reads, found, hottest, gone, held = Clock(), 0, 0, 0, 0, []
    is_hot = rank(keys) < keys // PART
    writing = np.random.default_rng(3)
    for some in _portions(drawn(keys, times, EXPONENT, seed=2)):
        for key, writes in zip(some.tolist(), (writing.random(len(some)) < WRITES).tolist(), strict=True):
            is_there = False
            if writes:
                graph.write("events", events(np.array([key])))
                graph.write("events", events(np.array([key]), weight=-1))
            else:
                reading = graph.read("view", [(key,)])
                reads, hottest = reads + 1, hottest + int(is_hot[key])
                is_there = not reading.missing.num_rows
                found += is_there
                rows = [each.rows for each in graph.drain()] or [reading.rows]
                check(rows[0], [key], 1)
            if not is_there:  # else nothing is more than it was
                graph.drain()
                gone += clock.timed(lambda: budget.enforce(graph))
                graph.drain()
                held.append(graph.partial_bytes)
    if max(held) > 1.1 * budget.max_bytes:
        raise Failed(f"{budget.max_bytes} bytes may be held, and {max(held)} were")
    measures = {"hit_ratio": found / hottest, "hits_percent": 100 * found / reads, "evicted": float(gone)}
    measures |= {"hottest_percent": 100 * hottest / reads, "longest_ms": clock.longest_ms}
    return Result(times, measures | {"budget_MB": budget.max_bytes / MB, "held_MB": max(held) / MB})


def said(work: Work, _: str) -> Result:
    """What a graph says that it holds, beside what the process has more."""
    keys = work.options["keys"]
    graph = loaded(CHAIN, keys, 1)
    fill(graph, np.arange(min(keys, AT_ONCE)), 1)
    gc.collect()
    rss, before = psutil.Process().memory_info().rss, graph.partial_bytes
    fill(graph, np.arange(AT_ONCE, keys), work.options["at_once"])
    gc.collect()
    more, says = psutil.Process().memory_info().rss - rss, graph.partial_bytes - before
    return Result(keys, {"said_MB": says / MB, "more_MB": more / MB, "said_ratio": says / more})


def _portions(keys: Numbers) -> Iterator[Numbers]:
    return (keys[start : start + AT_ONCE] for start in range(0, len(keys), AT_ONCE))
