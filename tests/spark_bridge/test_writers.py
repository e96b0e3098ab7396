"""What the writers do in the driver, without a Spark."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pyarrow as pa
import pytest

from netchannel import Group, GroupClient, ReceiverServer, SenderServer, StagingPolicy
from spark_bridge.options import write_options
from spark_bridge.writers import BatchWriter, Written
from spark_bridge.writing import Attempts, Rows

BATCH = pa.record_batch({"n": [1]})


@pytest.mark.parametrize(("name", "known"), [({}, None), ({"txnappid": "mine", "txnversion": "7"}, 7)])
async def test_a_batch_write_gives_its_name_up_but_for_one_that_it_was_given(
    tmp_path: Path, name: dict[str, str], known: int | None
) -> None:
    """SP-WR-5: a channel knows a bounded number of them."""
    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("out", staging=StagingPolicy(tmp_path), ack="explicit")
        given = {"endpoint": receiver.address, "channels": "out", "endofstream": "false"}
        options = write_options(given | name, "batch write")
        writer = BatchWriter(Rows(options, BATCH.schema))
        work = writer._work
        group = Group(work.application, work.epoch, 0)
        outbox = sender.register_channel("out", receiver.address, group=group)
        await outbox.send(BATCH)
        attempts = Attempts(((options.connection.sources[0].key, await outbox.seal()),))
        await asyncio.to_thread(writer.commit, [Written(work, None, attempts)])
        assert await inbox.recv() == BATCH
        async with GroupClient(receiver.address, "out") as client:
            assert await client.last_epoch(work.application) == known
