"""The data source over Spark Connect."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest

from netchannel import ReceiverServer, RetainPolicy, SenderServer, StagingPolicy
from tests.support.needs import need_module

pytestmark = [pytest.mark.spark, pytest.mark.processes]

ROOT = Path(__file__).parents[2]
IDS = range(1000)


async def take(inbox, rows: int) -> list[int]:
    found: list[int] = []
    while len(found) < rows:
        found += (await inbox.recv())["id"].to_pylist()
    return found


async def test_source_and_sink_work_over_connect(tmp_path):
    """SP-CON-1."""
    need_module("grpc", "grpc_status", "google.rpc", "zstandard")  # Spark Connect imports them
    async with SenderServer("127.0.0.1:0") as sender, ReceiverServer() as receiver:
        outboxes = [sender.retain_channel(name, RetainPolicy()) for name in "ab"]
        for outbox in outboxes:
            await outbox.send_many(
                pa.RecordBatch.from_pydict({"id": IDS[n : n + 50]}) for n in range(0, 1000, 50)
            )
        inboxes = [
            receiver.register_staged_channel(name, StagingPolicy(tmp_path / "staged"))
            for name in ("batch", "stream")
        ]
        program = await asyncio.create_subprocess_exec(
            sys.executable,
            *(
                "-m",
                "tests.spark_bridge.connecting",
                sender.address,
                receiver.address,
                str(tmp_path / "checkpoint"),
            ),
            cwd=ROOT,
            env={**os.environ, "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(180):
            out, err = await program.communicate()
            assert program.returncode == 0, err.decode()[-3000:]
            assert out.decode().splitlines()[-1] == "2000 rows"
            for inbox in inboxes:
                assert sorted(await take(inbox, 2000)) == sorted([*IDS, *IDS])
        assert [outbox.statistics().buffered_messages for outbox in outboxes] == [0, 0]
