"""How a member is: its figures, and profiles of its process; and which of its inputs take rows."""

from __future__ import annotations

import asyncio
import cProfile
import gc
import json
import marshal
import os
import resource
import sys
import tracemalloc
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa

from nebuli.steps.member.calls import call_messages as ask

if TYPE_CHECKING:
    from typing import Any

    from nebuli.steps.member.member import Member

MAX_PROFILE_S = 60.0
_FRAMES, _LINES, _TYPES = 8, 50, 30
_LOOKING = asyncio.Lock()
"""Python has one tracer of memory, and one profiler, in a process."""


async def inspected(
    member: Member, asked: ask.Hold | ask.LetGo | ask.AskFigures | ask.AskProfile
) -> ask.Answer:
    """Return a member's answer."""
    match asked:
        case ask.Hold(handle):
            member.step_inputs.held.add(handle)
            return ask.Noted()
        case ask.LetGo(handle):
            member.step_inputs.let_go(handle)
            return ask.Noted()
        case ask.AskFigures():
            return ask.Figures(json.dumps(_figures(member)))
        case ask.AskProfile(kind, for_s):
            async with _LOOKING:
                looked = _heap if kind == "heap" else _calls
                return ask.Profile(await looked(min(for_s, MAX_PROFILE_S)))


def _figures(member: Member) -> dict[str, Any]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "address": member.address,
        "pid": os.getpid(),
        "step": member.step,
        "state": type(member.state).__name__.lower(),
        "waiting_rows": member.waiting_rows,
        "paused_inputs": sorted(member.step_inputs.held),
        "resident_bytes": _resident_bytes(),
        "arrow_bytes": pa.total_allocated_bytes(),
        "cpu_seconds": round(used.ru_utime + used.ru_stime, 3),
        "operators": {key: asdict(each) for key, each in member.statistics.items()},
    }


def _resident_bytes() -> int:
    """Return the resident size, if the system reports it; otherwise the largest so far."""
    try:
        pages = int(Path("/proc/self/statm").read_text("utf-8").split()[1])
    except OSError:
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
    return pages * os.sysconf("SC_PAGE_SIZE")


async def _heap(for_s: float) -> bytes:
    """Return the objects, and the lines that have allocated memory during the profile and still hold it; as text."""
    tracemalloc.start(_FRAMES)
    try:
        await asyncio.sleep(for_s)
        snapshot = tracemalloc.take_snapshot()
    finally:
        tracemalloc.stop()
    kinds, sizes = Counter[str](), Counter[str]()
    for each in gc.get_objects():
        name = f"{type(each).__module__}.{type(each).__qualname__}"
        kinds[name] += 1
        sizes[name] += sys.getsizeof(each, 0)
    pool = pa.default_memory_pool()
    lines = [
        f"resident memory: {_resident_bytes():,} bytes",
        f"Arrow's pool ({pool.backend_name}): {pool.bytes_allocated():,} bytes, peak {pool.max_memory() or 0:,}",
        "",
        "objects that Python's collector knows, by type:",
        *(f"{count:>12,}  {sizes[name]:>14,} bytes  {name}" for name, count in kinds.most_common(_TYPES)),
        "",
        f"allocated by Python within {for_s:g} s and still held, by line:",
        *(str(each) for each in snapshot.statistics("lineno")[:_LINES]),
        "",
    ]
    return "\n".join(lines).encode()


async def _calls(for_s: float) -> bytes:
    """Return a profile of the member's thread, as `pstats` reads it from a file."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        await asyncio.sleep(for_s)
    finally:
        profile.disable()
    profile.create_stats()
    return marshal.dumps(profile.stats)
