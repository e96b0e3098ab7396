"""Spark's data source of collections: at a time and following, inserted once, whatever is tried again or killed."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.functions import sum as added

import nebuli.spark
from nebuli.blocking import Collections
from tests.support.seeds import drawn_seed
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(580)]

SCHEMA = pa.schema([("k", pa.string()), ("n", pa.int64())])
ROOT = Path(__file__).parents[4]
Rows = Counter[tuple[Any, ...]]


@pytest.fixture(scope="module")
def spark(start_spark: Callable) -> Iterator:
    """With retries of tasks."""
    session = start_spark("local[2,4]")
    session.conf.set("spark.sql.shuffle.partitions", "2")
    nebuli.spark.register(session)
    return session


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Collections]:
    with Collections(tmp_path / "store", tick_s=0.2) as collections:
        yield collections


def rows(numbers: range) -> pa.RecordBatch:
    return pa.record_batch([[f"k{n % 3}" for n in numbers], list(numbers)], schema=SCHEMA)


def counted(table: pa.Table | pa.RecordBatch) -> Rows:
    return Counter(tuple(row.values()) for row in table.to_pylist())


def read(spark, tmp_path: Path, name: str, **options: Any):
    given = {"store": tmp_path / "store", "collection": name} | options
    return spark.read.format("collection").options(**given).load()


def streamed(spark, tmp_path: Path, name: str, **options: Any):
    given = {"store": tmp_path / "store", "collection": name} | options
    return spark.readStream.format("collection").options(**given).load()


def weak_once(folder: Path) -> Callable:
    """What fails the first task that comes to its rows, once."""
    marker = str(folder / "has-failed")

    def passed(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        with suppress(FileExistsError):
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
            raise ValueError("a passing weakness")

    return passed


def times(collections: Collections, name: str) -> dict[int, Rows]:
    """What was inserted at each time, whatever is left of it."""
    found: dict[int, Rows] = {}
    since = collections.describe(name).since
    end = collections.latest(name)
    spans = collections.subscribe(name, since, snapshot=True)
    for span in spans:
        for at, batch in span.updates:
            for *row, weight in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                found.setdefault(at, Counter())[tuple(row)] += weight
        if span.upper > end:
            break
    spans.close()
    return found


def test_a_batch_is_read_at_one_time_by_all_tasks(spark, store: Collections, tmp_path: Path) -> None:
    """ST-COL-1, ST-CL-1: also by one that is tried again, while others insert."""
    store.create("a", SCHEMA, shards=4)
    first = store.insert("a", rows(range(100)))
    store.insert("a", rows(range(50)))
    then = read(spark, tmp_path, "a", asOf=first)
    assert then.rdd.getNumPartitions() == 4
    weak = then.mapInArrow(weak_once(tmp_path), then.schema)
    store.insert("a", rows(range(100, 200)))
    assert Counter(map(tuple, weak.collect())) == counted(rows(range(100)))
    assert (tmp_path / "has-failed").exists()
    now = read(spark, tmp_path, "a")
    expected = counted(rows(range(200))) + counted(rows(range(50)))
    assert Counter(map(tuple, now.collect())) == expected
    changes = read(spark, tmp_path, "a", changes=True)
    assert changes.columns == ["k", "n", "_weight", "_time"]
    assert {(k, n): weight for k, n, weight, _ in changes.collect()} == dict(expected)


def test_a_frame_is_inserted_at_one_time(spark, store: Collections, tmp_path: Path) -> None:
    """ST-COL-2: once, though a task is tried again, and with a version also if all of it is."""
    store.create("a", SCHEMA, shards=2)

    def insert(frame, **options: Any) -> None:
        writer = frame.write.format("collection").mode("append")
        writer.options(store=tmp_path / "store", collection="a", **options).save()

    frame = spark.createDataFrame([(f"k{n % 3}", n) for n in range(1000)], "k STRING, n BIGINT").repartition(
        5
    )
    insert(frame.mapInArrow(weak_once(tmp_path), frame.schema))
    assert (tmp_path / "has-failed").exists()
    for _ in range(2):
        insert(spark.createDataFrame([("again", 1)], "k STRING, n BIGINT"), txnAppId="loader", txnVersion=3)
    insert(spark.createDataFrame([(1000, "k0", 2), (0, "k0", -1)], "n BIGINT, k STRING, _weight INT"))
    assert list(times(store, "a").values()) == [
        counted(rows(range(1000))),
        Counter({("again", 1): 1}),
        Counter({("k0", 1000): 2, ("k0", 0): -1}),
    ]
    with pytest.raises(
        Exception, match=r"CheckpointReplaced.*version 2: the higher number 3 was already inserted"
    ):
        insert(spark.createDataFrame([("old", 1)], "k STRING, n BIGINT"), txnAppId="loader", txnVersion=2)
    assert not any((tmp_path / "store").glob("blobs/*staged/*")), "nothing that was staged is left"


def test_a_batch_that_is_run_again_has_the_time_that_it_had(
    spark, store: Collections, tmp_path: Path
) -> None:
    """ST-COL-3: (query id, batch id) is one time; in other partitions, too."""
    store.create("a", SCHEMA)
    (tmp_path / "in").mkdir()

    def run(partitions: int) -> None:
        files = spark.readStream.schema("k STRING, n BIGINT").option("maxFilesPerTrigger", 1)
        writer = files.json(str(tmp_path / "in")).repartition(partitions).writeStream.format("collection")
        writer = writer.options(store=tmp_path / "store", collection="a")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        writer.trigger(availableNow=True).start().awaitTermination(200)

    for number in range(3):
        lines = "".join(f'{{"k": "k", "n": {10 * number + row}}}\n' for row in range(10))
        (tmp_path / "in" / f"{number}.json").write_text(lines, "utf-8")
    run(3)
    before = times(store, "a")
    assert sorted(len(each) for each in before.values()) == [10, 10, 10]
    for left in (tmp_path / "checkpoint" / "commits").glob(
        "*2*"
    ):  # as if it had been killed before it wrote that
        left.unlink()
    run(2)
    assert times(store, "a") == before


def test_a_stream_follows_a_handover(spark, store: Collections, tmp_path: Path) -> None:
    """ST-REN-6, ST-CTL-3: what comes adds up to the collection; for its reader what is not read is held."""
    store.create("a", SCHEMA, shards=2)
    store.insert("a", rows(range(30)))

    def follow() -> None:
        changes = streamed(spark, tmp_path, "a", reader="spark", changes=True, minPartitions=2)
        writer = changes.writeStream.format("parquet").option("checkpointLocation", str(tmp_path / "read"))
        writer.trigger(availableNow=True).start(str(tmp_path / "out")).awaitTermination(200)

    def contents() -> Rows:
        net = spark.read.parquet(str(tmp_path / "out")).groupBy("k", "n").agg(added("_weight").alias("w"))
        return Counter({(k, n): w for k, n, w in net.collect() if w})

    follow()
    assert contents() == counted(rows(range(30)))
    held = store.describe("a").holds["spark/spark"].time
    at = store.insert("a", rows(range(30, 40)))
    store.new_rendition("a", rendition="r2", shards=3)
    store.write("a", [(at, rows(range(35)))], 0, at + 1, rendition="r2")
    store.handover("a", "r2")
    store.insert("a", rows(range(100, 105)))
    follow()
    assert contents() == counted(rows(range(35))) + counted(rows(range(100, 105)))
    store.insert("a", rows(range(5)))
    follow()  # Spark says that it has a batch when it plans the next one
    assert store.describe("a").holds["spark/spark"].time > held
    plain = streamed(spark, tmp_path, "a", startingTime=at).writeStream.format("noop")
    query = plain.option("checkpointLocation", str(tmp_path / "plain")).trigger(availableNow=True).start()
    with pytest.raises(Exception, match=r"collection a retracts \[?\{'k': .*changes=true"):
        query.awaitTermination(200)
    store.drop("a")
    store.create("a", SCHEMA)
    with pytest.raises(Exception, match=r"TimesReplaced.*replaced by another"):
        follow()


def test_a_stream_waits_for_the_first_write(spark, store: Collections, tmp_path: Path) -> None:
    """Of a collection whose writers give the times; what is written then is all read."""
    store.create("a", SCHEMA, timed="writers")
    changes = streamed(spark, tmp_path, "a", reader="spark").writeStream.format("parquet")
    query = changes.option("checkpointLocation", str(tmp_path / "read")).start(str(tmp_path / "out"))
    try:
        wait_for(lambda: query.lastProgress or query.status["message"], "it has looked")
        store.write("a", [(100, rows(range(5))), (200, rows(range(3)))], 0, 201)
        store.write("a", [(300, rows(range(7, 9)))], 201, 301)

        def there() -> bool:
            query.processAllAvailable()
            found = spark.read.schema("k STRING, n BIGINT").parquet(str(tmp_path / "out")).collect()
            return len(found) == 10

        wait_for(there, "all rows are read")
    finally:
        query.stop()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"collection": "b"}, r"unknown collection b: expected one of a, or create it first"),
        ({"asOf": 1}, "TimesForgotten.*cannot be read at time 1 any more"),
        ({"asOf": "noon"}, "the option asOf takes latest, or a time in milliseconds since 1970, not 'noon'"),
        ({"chnages": "true"}, "no option 'chnages' for a batch read or streaming read: did you mean changes"),
        ({"store": "/nowhere"}, "no store at /nowhere: give its folder as the option store"),
        ({"store": "postgresql://me:secret@localhost/db"}, "names no schema"),
    ],
)
def test_what_is_wrong_is_said(
    spark, store: Collections, tmp_path: Path, options: dict[str, Any], said: str
) -> None:
    store.create("a", SCHEMA, timed="writers", keep=0)
    store.write("a", [(100, rows(range(2)))], 0, 101)
    store.keep_house()
    with pytest.raises(Exception, match=said) as raised:
        read(spark, tmp_path, "a", **options).collect()
    assert "secret" not in str(raised.value)
    frame = spark.createDataFrame([("a", 1)], "k STRING, n BIGINT").write.format("collection").mode("append")
    writer = frame.options(store=tmp_path / "store", collection="a")
    with pytest.raises(Exception, match="assign the times of its rows"):
        writer.save()


def test_a_driver_that_is_killed_reads_and_inserts_each_row_once(store: Collections, tmp_path: Path) -> None:
    """ST-COL-2, ST-CL-2: from one collection into another one, by SIGKILL of all its processes at any moment."""
    for name in "ab":
        store.create(name, SCHEMA, shards=2)
    inserted: Rows = Counter()

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.nebuli.spark.collections.following_driver"]
        with (tmp_path / "driver.log").open("ab") as log:
            return subprocess.Popen(
                [*command, str(tmp_path / "store"), str(tmp_path / "checkpoint")],
                env=os.environ | {"PYTHONPATH": str(ROOT)},
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=ROOT,
            )

    def kill(process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)

    def insert(number: int) -> None:
        batch = rows(range(20 * number, 20 * number + 20))
        store.insert("a", batch)
        inserted.update(counted(batch))

    with drawn_seed() as seed:
        generator = random.Random(seed)
        driver = start()
        try:
            insert(0)
            for number in range(1, 3):
                there = len(inserted)
                wait_for(lambda there=there: len(counted(store.snapshot("b"))) >= there, "it goes on", 120)
                insert(number)
                threading.Event().wait(generator.uniform(0.0, 0.5))
                kill(driver)
                driver = start()
            insert(3)
            wait_for(lambda: counted(store.snapshot("b")) == inserted, "all is there, once", 120)
        finally:
            kill(driver)
    assert counted(store.snapshot("b")) == counted(store.snapshot("a")) == inserted
