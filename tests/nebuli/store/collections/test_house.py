"""Collections that are written for long stay short: they compact, whoever writes or keeps house."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.store.shards import access
from tests.nebuli.store.collections.rows import SCHEMA, batch, counted, zset


def longest_log(folder: Path) -> int:
    """Entries that who opens the store reads of one shard."""
    with sqlite3.connect(f"file:{folder}/ordering.db?mode=ro", uri=True) as db:
        (found,) = db.execute("select max(n) from (select count(*) n from log group by key)").fetchone()
    db.close()
    return int(found)


def blob_bytes(folder: Path) -> int:
    return sum(each.stat().st_size for each in (folder / "blobs").rglob("*") if each.is_file())


async def opening_s(folder: Path) -> float:
    """The least of three times to open the store and read the collection."""
    found = []
    for _ in range(3):
        start = time.perf_counter()
        async with Collections(folder) as collections:
            await collections.snapshot("stock")
        found.append(time.perf_counter() - start)
    return min(found)


@pytest.mark.long
async def test_many_changes_of_few_rows_leave_little(folder: Path) -> None:
    """5 000 inserts and deletes: entries, blobs and the time of opening are as after a few hundred."""
    generator = random.Random(1)
    there: Counter[tuple[str, int]] = Counter()
    entries, sizes = [], []
    async with Collections(folder) as collections:
        await collections.create("stock", SCHEMA, shards=2, keep=0)
        for number in range(5_000):
            row = f"shop {generator.randrange(10)}", generator.randrange(10)
            weight = -1 if there[row] else 1
            there[row] += weight
            await collections.insert("stock", zset((*row, weight)), producer="p", sequence=number)
            if number % 250 == 0:
                await collections.keep_house()
                entries.append(longest_log(folder))
                sizes.append(blob_bytes(folder))
                if number == 500:
                    early = await opening_s(folder)
        await collections.keep_house()
    assert max(entries) <= 2 * access.ENTRIES
    assert max(sizes) <= 1 << 20
    assert await opening_s(folder) <= 5 * early + 0.5
    async with Collections(folder) as collections:
        assert counted(await collections.snapshot("stock")) == +there


async def test_who_only_comes_for_one_row_compacts_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has appended the last entry of many goes away before it has compacted."""
    monkeypatch.setattr(access, "ENTRIES", 16)
    async with Collections(folder) as collections:
        await collections.create("stock", SCHEMA)
    longest = 0
    for number in range(50):
        async with Collections(folder) as collections:
            await collections.insert("stock", batch(("a", number)))
        longest = max(longest, longest_log(folder))
    assert longest <= 2 * 16
    async with Collections(folder) as collections:
        assert counted(await collections.snapshot("stock")) == Counter(("a", n) for n in range(50))


async def test_what_adds_up_to_nothing_takes_no_room(collections: Collections, folder: Path) -> None:
    """Also where the rows were many, and nothing comes behind them."""
    await collections.create("stock", SCHEMA, keep=0)
    many = pa.record_batch([["a"] * 50_000, range(50_000)], schema=SCHEMA)
    await collections.insert("stock", many)
    weight = pa.field("_weight", pa.int64())
    back = pa.record_batch([*many.columns, [-1] * len(many)], schema=SCHEMA.append(weight))
    at = await collections.insert("stock", back)
    await collections.insert("stock", batch(("b", 1)))
    await collections.create("other", SCHEMA)
    assert blob_bytes(folder) > 1_000_000
    await collections.snapshot("stock", at + 2)
    await collections.keep_house()
    assert blob_bytes(folder) == 0
    assert counted(await collections.snapshot("stock")) == Counter({("b", 1): 1})


async def test_two_that_compact_at_once_do_no_harm(
    collections: Collections, other: Collections, folder: Path
) -> None:
    await collections.create("stock", SCHEMA, shards=2, keep=0)
    rows = Counter()
    for number in range(6):
        many = pa.record_batch([[f"s{number}"] * 5_000, range(5_000)], schema=SCHEMA)
        rows += counted(pa.Table.from_batches([many]))
        await collections.insert("stock", many)
        await asyncio.gather(*(each.keep_house() for each in (collections, other) * 2))
        for each in (collections, other):
            assert counted(await each.snapshot("stock")) == rows
