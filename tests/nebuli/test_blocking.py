"""The blocking clients leave nothing that runs on their loop."""

from __future__ import annotations

import asyncio
import gc
import logging

import pytest

from nebuli.blocking import _Blocking, _Thread


class Client:
    """A client of which something still runs when it is closed, as of a call that gRPC has cancelled."""

    def __init__(self) -> None:
        self.ended: list[str] = []
        self.tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> Client:
        self.tasks.append(asyncio.create_task(self._waits()))
        await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        """Leave the task as it is."""

    async def _waits(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            self.ended.append("in its own time")


def test_what_still_runs_is_cancelled_and_has_time_to_end(caplog: pytest.LogCaptureFixture) -> None:
    client = Client()
    with caplog.at_level(logging.ERROR, "asyncio"), _Blocking(client, _Thread("test")):
        pass
    assert client.ended == ["in its own time"]
    client.tasks.clear()
    gc.collect()
    assert not caplog.records
