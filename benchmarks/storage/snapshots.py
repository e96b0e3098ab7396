"""How fast all rows of a table are read, by a process that has not written them."""

from __future__ import annotations

import asyncio
import tempfile
import time
from pathlib import Path
from statistics import median

from benchmarks.running import Failed
from benchmarks.work import Result, Work
from nebuli.store import Store
from nebuli.store.collections.space import Space

from .data import portions
from .elsewhere import done, folder_of
from .tables import NAME, TABLES, CollectionTable

MODULE = ".storage.snapshots"


def read(work: Work, _: str) -> Result:
    """All rows, several times; the median of these."""
    rows, times = work.options["rows"], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        done("fill", MODULE, work, folder)
        with TABLES[work.options["table"]](folder) as opened:
            for _ in range(work.options["reads"]):
                began = time.perf_counter()
                found = opened.read()
                times.append(time.perf_counter() - began)
                if found != rows:
                    raise Failed(f"{work.options['table']}: {rows} rows were written, {found} were read")
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return Result(len(times), {"rows_per_s": rows / median(times), "disk_MB": size / 1e6})


def fill(work: Work, _: str) -> Result:
    """Write the rows, a million at a time; of a collection make one part of them."""
    table, folder = TABLES[work.options["table"]], folder_of(work)
    table.create(folder)
    with table(folder) as opened:
        for rows in portions(work.options["rows"]):
            opened.append(opened.taken(rows))
        if isinstance(opened, CollectionTable):
            opened.keep_house()
    if table is CollectionTable:
        asyncio.run(_compact(folder))
    return Result(work.options["rows"])


async def _compact(folder: Path) -> None:
    """By itself it comes when there are many more appends than here."""
    async with Store.at(folder) as store:
        space = Space(store)
        await space.open()
        collection = await space.opened(NAME)
        for shard in (each for shards in collection.shards.values() for each in shards):
            await shard.compact(full=True)
            parts = shard.tracked.state.parts
            if [part.consolidated for part in parts] != [True]:
                raise Failed(f"after a compaction {shard.name} has {len(parts)} parts, where one was to be")
