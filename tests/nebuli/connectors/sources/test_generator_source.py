"""Rows that are made up: the same for the same seed, however they are taken, and no faster than their rate."""

from __future__ import annotations

import asyncio
import itertools
import time
from types import SimpleNamespace

import pyarrow as pa
import pytest

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.sources import generator_source
from nebuli.connectors.sources.generator_source import GeneratorSource
from nebuli.dataflow import zset
from topology import Column, DataType
from topology import GeneratorSource as Settings

COLUMNS = tuple(Column(name=str(type_), type=type_) for type_ in DataType)


def settings(**given: object) -> Settings:
    return Settings.model_validate({"logical": "l", "type": "Generator", **given})


async def taken(given: Settings) -> tuple[pa.Table, int]:
    """All rows, and how many batches they came in."""
    woken = asyncio.Event()
    loop = asyncio.get_running_loop()
    source = GeneratorSource(given, COLUMNS, lambda: loop.call_soon_threadsafe(woken.set))
    source.open()
    batches = []
    while (item := source.poll()) is not Signal.END:
        if isinstance(item, pa.RecordBatch):
            batches.append(zset.expand(item))
        else:
            await asyncio.wait_for(woken.wait(), 60)
            woken.clear()
    return pa.Table.from_batches(batches), len(batches)


async def test_the_same_seed_gives_the_same_rows_however_many_are_due_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, _ = await taken(settings(count=40_000, seed=3))
    seconds = itertools.count(step=0.03125)  # between two looks at the clock
    monkeypatch.setattr(generator_source, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    paced, batches = await taken(settings(count=40_000, seed=3, rows_per_s=128_000))
    assert batches == 10  # of 4000 rows
    assert whole.num_rows == 40_000
    assert paced.equals(whole)
    assert whole["int64"].to_pylist() == list(range(40_000))
    assert not (await taken(settings(count=40_000, seed=4)))[0].equals(whole)
    assert all(whole[column.name].null_count == 0 for column in COLUMNS)


async def test_rows_are_gathered_by_time_and_not_given_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 20 000 rows a second seven are due again by the time that seven were worked off."""
    seconds = itertools.count(step=0.00035)
    monkeypatch.setattr(generator_source, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    source = GeneratorSource(settings(count=4000, rows_per_s=20_000), COLUMNS, lambda: None)
    source.open()
    sizes = []
    while (item := source.poll()) is not Signal.END:
        if isinstance(item, pa.RecordBatch):
            sizes.append(item.num_rows)
    assert sum(sizes) == 4000
    assert 15 <= len(sizes) <= 22  # in 0.2 s
    assert all(150 <= size <= 250 for size in sizes[1:-1])


async def test_it_is_no_faster_than_its_rate() -> None:
    began = time.monotonic()
    table, _ = await taken(settings(count=100, rows_per_s=500))
    assert table.num_rows == 100
    assert time.monotonic() - began >= 100 / 500 - 0.01


@pytest.mark.parametrize("count", [0, 1])
async def test_few_rows_come_to_their_end(count: int) -> None:
    source = GeneratorSource(settings(count=count), COLUMNS, lambda: None)
    source.open()
    assert [isinstance(source.poll(), pa.RecordBatch) for _ in range(count)] == [True] * count
    assert source.poll() is Signal.END
