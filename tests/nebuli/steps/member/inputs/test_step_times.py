"""The times of steps that read collections, where these begin at different ones."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.dataflow import zset
from nebuli.dataflow.types import arrow_schema
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.member.inputs import step_inputs
from nebuli.steps.member.inputs.step_inputs import LeftOutRows, ReplayableSources, StepInputs
from nebuli.store import Store
from placement.plan import BoundSource
from placement.stepped_plan import TIME, Feed, SteppedPlan
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
    monkeypatch.setattr(step_inputs, "WAITING_ROWS", 5)
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
            inputs = StepInputs(log, readings, LeftOutRows(SteppedPlan(name="q", operators=())))
            reading = [
                asyncio.create_task(each.read(partial(inputs.room, "in", each), lambda _: arrived.set()))
                for each in readings
            ]
            await arrived.wait()
            passages = await readings.passages()
            for each in reading:
                each.cancel()
            await asyncio.gather(*reading, return_exceptions=True)
    assert int(passages[TIME].until.position) >= last
    assert {name: each.rows for name, each in passages.items()} == {TIME: 0, "in/early": ROWS, "in/late": 1}
