"""What it takes to have many collections open in one process."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path

import psutil

from benchmarks.running import Failed
from benchmarks.work import Result, Work
from nebuli import Collections

from .data import SCHEMA, rows_of
from .elsewhere import done, folder_of

MODULE = ".storage.opening"
MIB = 1 << 20


async def describe_all(work: Work, _: str) -> Result:
    """Each is described, with how far it can be read; ``more_MiB`` is what the process has then and not before."""
    with tempfile.TemporaryDirectory() as name:
        done("fill", MODULE, work, Path(name))
        before = _mib()
        began = time.perf_counter()
        async with Collections(name) as collections:
            described = await asyncio.gather(*map(collections.describe, await collections.list()))
            took, whole = time.perf_counter() - began, _mib()
        filled = [each for each in described if each.upper > each.created and each.renditions[0].bytes]
        if len(filled) != work.options["collections"]:
            raise Failed(
                f"{work.options['collections']} collections were filled, {len(filled)} were found so"
            )
    return Result(len(described), {"opened_s": took, "more_MiB": whole - before, "whole_MiB": whole})


async def fill(work: Work, _: str) -> Result:
    """Make them, each with a few rows."""
    names = [f"collection-{number:05}" for number in range(work.options["collections"])]
    async with Collections(folder_of(work)) as collections:
        for name in names:
            await collections.create(name, SCHEMA)
        rows = rows_of(work.options["rows"])
        await asyncio.gather(*(collections.insert(name, rows) for name in names))
    return Result(len(names))


def _mib() -> float:
    return psutil.Process().memory_info().rss / MIB
