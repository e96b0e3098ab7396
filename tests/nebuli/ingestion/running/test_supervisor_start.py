"""Who has a source run waits until it is known how its instances fare, and says for what."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from nebuli.ingestion.running import supervisor_start
from nebuli.ingestion.running.supervisor_files import SupervisorFiles
from nebuli.ingestion.running.supervisor_start import Started, started
from nebuli.ingestion.source_client import Sources
from tests.nebuli.ingestion.running.test_supervisor import sales


@pytest.fixture
def files(tmp_path: Path) -> Iterator[SupervisorFiles]:
    """Of a supervisor that is there, and starts no instance by itself."""
    found = SupervisorFiles.at(tmp_path / "supervised", tmp_path)
    with found.supervisor.held():
        yield found


@asynccontextmanager
async def ingesting(sources: Sources, behind: asyncio.Event | None = None) -> AsyncIterator[None]:
    async def ingest() -> None:
        if behind is not None:
            await behind.wait()
        await sources.ingest("sales")

    task = asyncio.create_task(ingest())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def test_it_is_said_what_is_waited_for(
    tmp_path: Path, files: SupervisorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_start, "_SILENT_S", 0.1)
    said: list[str] = []
    is_said = asyncio.Event()

    def say(text: str) -> None:
        said.append(text)
        is_said.set()

    async with sales(tmp_path) as sources, ingesting(sources, is_said):
        assert await started(sources, files, "sales", [], replicas=1, say=say) == Started(os.getpid(), None)
        assert [each.health for each in await sources.instances("sales")] == ["running"]
        assert said == ["waiting, for 60 s at most: 0 of 1 instances have been started"]
        said.clear()
        assert await started(sources, files, "sales", [], replicas=1, say=say) == Started(os.getpid(), None)
    assert said == []


async def test_it_is_said_which_instances_were_waited_for_in_vain(
    tmp_path: Path, files: SupervisorFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor_start, "_DEADLINE_S", 3.0)
    async with sales(tmp_path) as sources, ingesting(sources):
        found = await started(sources, files, "sales", [], replicas=2, say=lambda _: None)
    assert found == Started(
        os.getpid(),
        "1 of 2 instances have been started, after 3 s: no instance has reported an error; the "
        "instances continue if they can",
    )


async def test_the_first_error_of_an_instance_is_what_hinders_it(
    tmp_path: Path, files: SupervisorFiles
) -> None:
    async with sales(tmp_path) as sources:
        (tmp_path / "sales.csv").write_text("shop,amount\nAachen,one\n", "utf-8")
        async with ingesting(sources):
            found = await started(sources, files, "sales", [], replicas=1, say=lambda _: None)
    assert found.error is not None
    assert f"the message at 12 of {tmp_path}/sales.csv" in found.error
