"""What the writers do in the driver, without a Spark."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from netchannel import Group, GroupClient, ReceiverServer, SenderServer, StagingPolicy
from spark_bridge import CheckpointReplaced
from spark_bridge.options import write_options
from spark_bridge.writing.task_writer import Attempts, Rows, Work
from spark_bridge.writing.writers import BatchWriter, Running, StreamWriter, Written

BATCH = pa.record_batch({"n": [1]})


@pytest.mark.parametrize(("name", "known"), [({}, None), ({"txnappid": "mine", "txnversion": "7"}, 7)])
async def test_a_batch_write_gives_its_name_up_but_for_one_that_it_was_given(
    tmp_path: Path, name: dict[str, str], known: int | None
) -> None:
    """SP-WR-5: a channel knows a bounded number of them."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_staged_channel("out", StagingPolicy(tmp_path), ack="explicit")
        given = {"endpoint": receiver.address, "channels": "out", "endofstream": "false"}
        options = write_options(given | name, "batch write")
        writer = BatchWriter(Rows(options, BATCH.schema))
        work = writer._work
        group = Group(work.application, work.epoch, 0)
        outbox = sender.register_attempt("out", receiver.address, group)
        await outbox.send(BATCH)
        attempts = Attempts(((options.connection.sources[0].key, await outbox.seal()),))
        await asyncio.to_thread(writer.commit, [Written(work, None, attempts)])
        assert await inbox.recv() == BATCH
        async with GroupClient(receiver.address, "out") as client:
            assert await client.last_epoch(work.application) == known


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
async def test_an_empty_write_has_its_columns(tmp_path: Path, guarantee: str) -> None:
    """In each of its channels; done again under its version it does nothing."""
    schema = pa.schema({"n": pa.int64(), "at": pa.timestamp("us", tz="UTC")})
    given = {"channels": "a,b", "deliveryGuarantee": guarantee}
    if guarantee == "exactly-once":
        given |= {"txnAppId": "app", "txnVersion": "0"}
    async with ReceiverServer() as receiver:
        inboxes = [
            receiver.register_staged_channel(name, StagingPolicy(tmp_path))
            if guarantee == "exactly-once"
            else receiver.register_channel(name)
            for name in ("a", "b")
        ]
        options = write_options({"endpoint": receiver.address, **given}, "batch write")
        for _ in range(2 if guarantee == "exactly-once" else 1):
            writer = BatchWriter(Rows(options, schema))
            await asyncio.to_thread(writer.commit, [])
        async with asyncio.timeout(60):
            for inbox in inboxes:
                assert [batch async for batch in inbox] == []
                assert await inbox.schema() == schema


def commit(receiver: ReceiverServer, query: str, checkpoints: str | None = None, **given: Any) -> None:
    """Commit batch 0 of a query whose tasks have written nothing, as Spark's driver does."""
    options = write_options({"endpoint": receiver.address, "channels": "out", **given}, "streaming write")
    source = options.connection.sources[0].key
    writer = StreamWriter(Rows(options, BATCH.schema))
    attempt = writer._rows.attempt(0, Work(query, 0), 0)
    attempt.send(BATCH)
    made = Attempts(((source, attempt.seal()),))
    writer.commit([Written(Work(query, 0), Running(query, 0, checkpoints, None), made)], 0)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"checkpointLocation": "ck"}, {"checkpointLocation": "./ck"}),
        ({"checkpointLocation": "ck"}, {"checkpointLocation": "file:{here}/x/../ck"}),
        ({"checkpoints": "all", "queryName": "q"}, {"checkpointLocation": "{here}/all/q"}),
    ],
)
async def test_one_checkpoint_is_one_however_it_is_written(tmp_path, monkeypatch, first, second):
    """SP-WR-4: the second query was started after the checkpoint of the first was deleted."""
    monkeypatch.chdir(tmp_path)
    second = {name: text.format(here=tmp_path) for name, text in second.items()}
    async with ReceiverServer() as receiver:
        receiver.register_staged_channel("out", StagingPolicy(tmp_path / "staged"))
        await asyncio.to_thread(commit, receiver, "one", **first)
        with pytest.raises(
            CheckpointReplaced, match=rf"with checkpoint file://.*{tmp_path}/(ck|all/q): the checkpoint"
        ):
            await asyncio.to_thread(commit, receiver, "two", **second)


async def test_the_same_relative_checkpoint_of_two_applications_is_two(tmp_path, monkeypatch):
    """SP-WR-4: neither is refused for the other's sake."""
    async with ReceiverServer() as receiver:
        inbox = receiver.register_staged_channel("out", StagingPolicy(tmp_path / "staged"))
        for application in ("one", "two"):
            (tmp_path / application).mkdir()
            monkeypatch.chdir(tmp_path / application)
            await asyncio.to_thread(commit, receiver, application, checkpointLocation="ck")
            assert await inbox.recv() == BATCH


async def test_a_query_that_cannot_be_guarded_is_warned_of(tmp_path, caplog):
    """SP-WR-4: its checkpoint is a new directory at every start."""
    caplog.set_level(logging.WARNING, "spark_bridge")

    def warnings() -> list[str]:
        """Those of this package: the process-wide sender warns of what other tests have left."""
        records = [each for each in caplog.records if each.name.startswith("spark_bridge")]
        return [each.getMessage()[:45] for each in records]

    async with ReceiverServer() as receiver:
        receiver.register_staged_channel("out", StagingPolicy(tmp_path / "staged"))
        await asyncio.to_thread(commit, receiver, "named", checkpoints="/all", queryName="q")
        assert not warnings()
        await asyncio.to_thread(commit, receiver, "bare", checkpoints="/all")
    assert warnings() == ["query bare writes to 'out' without protection"]
