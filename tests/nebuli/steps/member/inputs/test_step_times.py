"""The times of steps that read collections, where these begin at different ones."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.member.inputs import feeds
from nebuli.steps.member.inputs.step_inputs import ReplayableSources
from nebuli.store import Store
from placement.plan import BoundSource
from placement.stepped_plan import TIME, Feed
from topology import SOURCES, Column, DataType

COLUMNS = (Column(name="n", type=DataType.INT64),)
ROWS = 40


def feed(store: Path, name: str, **settings: Any) -> Feed:
    given = {"logical": "l", "store": str(store), "collection": name, "reader": "r", **settings}
    physical = SOURCES.named("Collection").model_validate({"type": "Collection", **given})
    source = BoundSource(id="in", logical="l", schema=COLUMNS, physical=physical)
    return Feed(input="in", name=f"in/{name}", source=source)


async def test_what_begins_earlier_is_read_up_to_where_the_last_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many rows that are, and though there is room for few: none is taken before all are there."""
    monkeypatch.setattr(feeds, "WAITING_ROWS", 5)
    async with Collections(tmp_path / "store", tick_s=0.05) as collections:
        for name in ("early", "late"):
            await collections.create(name, pa.schema([("n", pa.int64())]))
        for number in range(ROWS):
            await collections.insert("early", pa.record_batch({"n": [number]}))
        last = await collections.insert("late", pa.record_batch({"n": [-1]}))
        both = [feed(tmp_path / "store", "early", as_of=0), feed(tmp_path / "store", "late")]
        schema = zset.weighted(arrow_schema(COLUMNS))
        async with (
            Store.at(tmp_path / "log") as store,
            await InputLog.open(store, "m", {"in": schema}) as log,
            ReplayableSources(both, log, {}) as readings,
            asyncio.timeout(30),
        ):
            arrived = asyncio.Event()
            member = Limited(readings)
            reading = [
                asyncio.create_task(
                    each.read(partial(feeds.room, member, "in", each), lambda _: arrived.set())
                )
                for each in readings
            ]
            await arrived.wait()
            passages = await readings.passages()
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    assert int(passages[TIME].until.position) >= last
    assert {name: each.rows for name, each in passages.items()} == {TIME: 0, "in/early": ROWS, "in/late": 1}


class Limited(SimpleNamespace):
    """What `feeds.room` asks of a member; no step takes anything."""

    def __init__(self, readings: ReplayableSources) -> None:
        super().__init__(held=(), readings=readings, taken=asyncio.Event())

    @property
    def waiting_rows(self) -> int:
        return int(self.readings.waiting_rows)
