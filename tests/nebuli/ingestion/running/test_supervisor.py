"""A supervisor with its instances, which are processes that are killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.errors import SourceRefused, SourceUnknown
from nebuli.ingestion.running.instance_process import order, place_of
from nebuli.ingestion.running.supervisor import Supervisor, WhyEnded
from nebuli.ingestion.running.supervisor_files import SupervisorFiles
from nebuli.ingestion.source_client import Sources
from nebuli.store.store_url import StoreUrl
from tests.support.waiting import until_async

pytestmark = pytest.mark.processes


@asynccontextmanager
async def sales(folder: Path, replicas: int = 1) -> AsyncIterator[Sources]:
    (folder / "sales.csv").write_text("shop,amount\nAachen,1\n", "utf-8")
    definition = parse_definition(
        """
        name: sales
        from: {type: File, path: sales.csv}
        format: CSV
        on_error: wait
        schema: [{name: shop, type: string}, {name: amount, type: int64}]
        """
    )
    async with Sources(folder / "store") as sources:
        await sources.create(definition.below(folder), replicas=replicas)
        yield sources


@asynccontextmanager
async def supervised(sources: Sources, folder: Path) -> AsyncIterator[asyncio.Task[WhyEnded]]:
    task = asyncio.create_task(Supervisor(sources, folder / "store", "sales").run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert running() == {}


def running() -> dict[str, int]:
    """The instances that are children of this process, by their names."""
    found = {}
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            with_arguments = each.cmdline() if each.status() != psutil.STATUS_ZOMBIE else []
            if with_arguments[-2:-1] == ["sales"]:
                found[with_arguments[-1]] = each.pid
    return found


async def until_ingested_by(sources: Sources, names: set[str]) -> dict[str, int]:
    """Wait until instances of these names, and no others, ingest."""

    async def look() -> dict[str, int] | None:
        pids = running()
        said = {
            each.instance: each.pid
            for each in await sources.instances("sales")
            if each.health == "running" and each.upper
        }
        return pids if pids.keys() == names and pids.items() <= said.items() else None

    return await until_async(look, f"instances {names}") if names else {}


async def test_there_are_as_many_instances_as_there_are_to_be(tmp_path: Path) -> None:
    """Whoever dies is started again, under its name; the others go on, also through another scale and a rebuild."""
    async with sales(tmp_path) as sources, supervised(sources, tmp_path) as task:
        first = await until_ingested_by(sources, {"1"})
        await sources.scale("sales", 3)
        three = await until_ingested_by(sources, {"1", "2", "3"})
        assert three["1"] == first["1"]
        os.kill(three["2"], signal.SIGKILL)
        await until_other_than(three["2"])
        again = await until_ingested_by(sources, {"1", "2", "3"})
        assert (again["1"], again["3"]) == (three["1"], three["3"])
        await sources.rebuild("sales")
        await until_rendition(sources, "r2")
        assert running() == again
        await sources.scale("sales", 1)
        assert await until_ingested_by(sources, {"1"}) == first
        await sources.scale("sales", 0)
        async with asyncio.timeout(30):
            assert await task == "scaled to 0"
        assert {each.health for each in await sources.instances("sales")} == {"ended"}


async def test_it_ends_when_the_source_is_dropped(tmp_path: Path) -> None:
    async with sales(tmp_path, replicas=2) as sources, supervised(sources, tmp_path) as task:
        await until_ingested_by(sources, {"1", "2"})
        await sources.drop("sales")
        async with asyncio.timeout(30):
            assert await task == "dropped"
        assert running() == {}
        assert await sources.instances("sales") == []
        with pytest.raises(SourceUnknown, match="there is no source sales"):
            await Supervisor(sources, tmp_path / "store", "sales").run()


async def test_an_instance_that_is_deaf_to_its_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nebuli.ingestion.running.supervisor._STOP_S", 0.2)
    async with sales(tmp_path) as sources:
        async with supervised(sources, tmp_path):
            pids = await until_ingested_by(sources, {"1"})
            os.kill(pids["1"], signal.SIGSTOP)
        assert not psutil.pid_exists(pids["1"])


async def test_there_is_one_of_a_source_on_a_host(tmp_path: Path) -> None:
    """A second one hears which process is; whoever has been it leaves nothing behind that would keep others out."""
    files = SupervisorFiles.at(tmp_path, "sales", tmp_path / "state")
    assert files.holder() is None
    for _ in range(2):
        with files.held():
            assert files.holder() == os.getpid()
            with (
                pytest.raises(
                    SourceRefused, match=f"source sales is run on this host by process {os.getpid()}"
                ),
                files.held(),
            ):
                pass
            with SupervisorFiles.at(tmp_path, "other", tmp_path / "state").held():
                pass
        assert files.holder() is None


async def test_the_files_of_one_are_removed_unless_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is removed between the moment it is opened and that it is had locks nobody out."""
    files = SupervisorFiles.at(tmp_path, "sales", tmp_path / "state")
    files.log.touch()
    with files.held():
        files.remove()
        assert (files.lock.exists(), files.log.exists()) == (True, True)
    files.remove()
    files.remove()
    assert (files.lock.exists(), files.log.exists()) == (False, False)

    lock, calls = fcntl.flock, 0

    def removed_before(file: Any, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            files.lock.unlink()
        lock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with files.held():
        assert files.holder() == os.getpid()
        assert calls == 3  # on the one that was removed, on the other one, and of whoever asks


def test_a_store_by_url_is_told_to_instances_whole_and_has_its_lock_beside_others(tmp_path: Path) -> None:
    """With the password, which no list of processes shows; the lock is in this account's folder, by the URL."""
    url = StoreUrl("postgresql://me:hidden@h/db", "a", "s3://bucket/prefix")
    assert place_of(order(url)) == url
    assert place_of(order(tmp_path)) == tmp_path
    files = [SupervisorFiles.at(each, "sales", tmp_path / "state") for each in (url, url / "b", tmp_path)]
    assert len({each.lock for each in files}) == 3
    assert [each.lock.is_relative_to(tmp_path / "state") for each in files] == [True, True, False]


async def until_other_than(pid: int) -> None:
    """Wait until instance 2 is another process."""

    async def look() -> bool:
        return running().get("2", pid) != pid

    await until_async(look, "another instance 2")


async def until_rendition(sources: Sources, rendition: str) -> None:
    async def look() -> bool:
        return (await sources.collections.describe("sales")).active == rendition

    await until_async(look, f"the collection is {rendition}")


async def test_it_ends_when_its_store_is_deleted(tmp_path: Path) -> None:
    """Nobody is left who could tell it to."""
    async with sales(tmp_path, 2) as sources, supervised(sources, tmp_path) as task:
        await until_ingested_by(sources, {"1", "2"})
        shutil.rmtree(tmp_path / "store")
        async with asyncio.timeout(60):
            assert await task == "store deleted"
