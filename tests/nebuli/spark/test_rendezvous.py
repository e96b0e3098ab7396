"""Where a fragment's thread and Spark meet, without Spark."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.connectors.endpoints import Signal
from nebuli.connectors.errors import FragmentError
from nebuli.spark.rendezvous import Rendezvous
from netchannel.servers.receiver_channel import ReceiverChannel
from tests.support.waiting import until_async


async def test_whatever_ends_the_task_that_takes_the_result_ends_the_fragment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where its memory is at its limit: nobody else would say that nothing comes any more."""

    def out_of_memory(channel: ReceiverChannel) -> AsyncIterator[pa.RecordBatch]:
        raise MemoryError("no more")

    monkeypatch.setattr(ReceiverChannel, "__aiter__", out_of_memory)
    meeting = Rendezvous(lambda: None)
    await asyncio.to_thread(meeting.open, "127.0.0.1", "secret", tmp_path, {}, "result", bounded=True)

    async def found() -> bool:
        return meeting.poll() is not Signal.LATER

    with pytest.raises(FragmentError, match="Spark's result: MemoryError: no more"):
        await until_async(found, "the end of the task")
    await asyncio.to_thread(meeting.close)
