"""Spark as a source: a streaming DataFrame of raw messages goes into a collection, and a source ingests that."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.message_addresses import PAYLOAD
from nebuli.ingestion.source_client import Sources
from tests.nebuli.store.collections.rows import Accumulated
from tests.support import spark_java
from tests.support.seeds import drawn_seed
from tests.support.waiting import until_async

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(280)]

ROOT = Path(__file__).parents[4]
ORDERS = """
name: orders
from: {type: Collection, collection: payloads}
format: JSON
envelope: {type: upsert, key: [id], deleted: gone}
schema: [{name: id, type: int64}, {name: note, type: string}]
"""
Message = dict[str, Any]
Rows = Counter[tuple[Any, ...]]


def drawn_batches(generator: random.Random, count: int) -> list[list[Message]]:
    """Batches in which an id is once at most: so their order is all that counts, and that Spark keeps."""
    ids = [generator.sample(range(30), 12) for _ in range(count)]
    return [
        [{"id": each, "note": f"{number}: “{each}”\n", "gone": generator.random() < 0.25} for each in some]
        for number, some in enumerate(ids)
    ]


def encoded(message: Message) -> bytes:
    return json.dumps(message).encode()


def come(folder: Path, number: int, batch: list[Message]) -> None:
    """A file, which is there at once and whole."""
    hidden = folder / f".{number}"
    hidden.write_bytes(b"".join(encoded(each) + b"\n" for each in batch))
    os.utime(hidden, (1_000_000 + number, 1_000_000 + number))  # Spark takes them by their age
    hidden.rename(folder / f"{number}.jsonl")


def upserted(batches: list[list[Message]]) -> Rows:
    """The rows that are there in the end, by one after the other."""
    rows: dict[int, Message] = {}
    for each in (message for batch in batches for message in batch):
        rows.pop(each["id"], None)
        if not each["gone"]:
            rows[each["id"]] = each
    return Counter((each["id"], each["note"]) for each in rows.values())


def started(tmp_path: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "tests.nebuli.spark.collections.payload_driver"]
    with (tmp_path / "driver.log").open("ab") as log:
        return subprocess.Popen(
            [*command, *(str(tmp_path / each) for each in ("in", "store", "checkpoint"))],
            env=os.environ | spark_java.environment() | {"PYTHONPATH": str(ROOT)},
            stdout=log,
            stderr=log,
            start_new_session=True,
            cwd=ROOT,
        )


def kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(30)


async def followed(sources: Sources, name: str) -> Accumulated:
    """All that has changed in a collection, by time."""
    found = Accumulated()
    since = (await sources.collections.describe(name)).since
    async with aclosing(sources.collections.subscribe(name, since, snapshot=True)) as spans:
        await found.follow(spans, await sources.collections.latest(name))
    return found


async def test_what_spark_streams_is_ingested_as_by_one_clean_run(tmp_path: Path) -> None:
    """ST-ING-2, ST-VAR-1: (query id, batch id) is one time, though the driver and an instance are killed on the way."""
    (tmp_path / "in").mkdir()
    with drawn_seed() as seed:
        generator = random.Random(seed)
        batches = drawn_batches(generator, 4)
        async with Sources(tmp_path / "store") as sources:
            await sources.collections.create("payloads", pa.schema([(PAYLOAD, pa.binary())]), shards=2)
            await sources.create(parse_definition(ORDERS))
            instances = [asyncio.create_task(sources.ingest("orders", instance=each)) for each in "12"]
            driver = started(tmp_path)

            async def are_there(count: int) -> bool:
                assert driver.poll() is None, (tmp_path / "driver.log").read_text("utf-8")
                if not (await sources.collections.describe("orders")).upper:
                    return False
                table = await sources.collections.snapshot("orders")
                return Counter(zip(*table.to_pydict().values(), strict=True)) == upserted(batches[:count])

            try:
                come(tmp_path / "in", 0, batches[0])
                await until_async(lambda: are_there(1), "it goes on", 120)
                for number in range(1, 4):
                    come(tmp_path / "in", number, batches[number])
                await asyncio.sleep(generator.uniform(0.0, 2.0))
                await asyncio.to_thread(kill, driver)
                instances.pop(0).cancel()
                instances.append(asyncio.create_task(sources.ingest("orders", instance="3")))
                driver = started(tmp_path)
                await until_async(lambda: are_there(4), "all is there, once", 120)
            finally:
                await asyncio.to_thread(kill, driver)
                for each in instances:
                    each.cancel()
                await asyncio.gather(*instances, return_exceptions=True)
            raw, made = await followed(sources, "payloads"), await followed(sources, "orders")
    assert [*raw.changes.values()] == [Counter((encoded(each),) for each in batch) for batch in batches]
    for number, at in enumerate(raw.changes, start=1):
        assert made.at(at) == upserted(batches[:number]), "also at the time of each batch"
