"""A supervisor with its instances, which are processes that are killed."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from nebuli.ingestion.definition import Definition, parse_definition
from nebuli.ingestion.errors import SourceRefused
from nebuli.ingestion.running.instance_process import order, read_order
from nebuli.ingestion.running.process_lock import LockHolder, ProcessLock
from nebuli.ingestion.running.supervised_process import SupervisedProcess, end_process
from nebuli.ingestion.running.supervisor import Supervisor, WhyEnded
from nebuli.ingestion.running.supervisor_files import SupervisorFiles
from nebuli.ingestion.source_client import Sources
from nebuli.store.store_url import StoreUrl
from tests.support.starter import Forked, start_program
from tests.support.waiting import until_async

pytestmark = pytest.mark.processes


def definition(folder: Path, name: str = "sales") -> Definition:
    return parse_definition(
        f"""
        name: {name}
        from: {{type: File, path: sales.csv}}
        format: CSV
        on_error: wait
        schema: [{{name: shop, type: string}}, {{name: amount, type: int64}}]
        """
    ).below(folder)


@asynccontextmanager
async def sales(folder: Path, replicas: int = 1) -> AsyncIterator[Sources]:
    (folder / "sales.csv").write_text("shop,amount\nAachen,1\n", "utf-8")
    async with Sources(folder / "store") as sources:
        await sources.create(definition(folder), replicas=replicas)
        yield sources


@asynccontextmanager
async def supervised(
    sources: Sources, folder: Path, *, until_idle: bool = True
) -> AsyncIterator[asyncio.Task[WhyEnded]]:
    place = folder / "store"
    supervisor = Supervisor(sources, place, SupervisorFiles.at(place, folder / "state"))
    task = asyncio.create_task(supervisor.run(until_idle=until_idle))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert running() == {}


def running(source: str = "sales") -> dict[str, int]:
    """The instances of a source that are children of this process, by their names."""
    found = {}
    for each in psutil.Process().children():
        with suppress(psutil.NoSuchProcess):  # it has ended meanwhile
            with_arguments = each.cmdline() if each.status() != psutil.STATUS_ZOMBIE else []
            if with_arguments[-2:-1] == [source]:
                found[with_arguments[-1]] = each.pid
    return found


async def until_ingested_by(sources: Sources, names: set[str], source: str = "sales") -> dict[str, int]:
    """Wait until instances of these names, and no others, ingest."""

    async def look() -> dict[str, int] | None:
        pids = running(source)
        said = {
            each.instance: each.pid
            for each in await sources.instances(source)
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
            assert await task == "idle"
        assert {each.health for each in await sources.instances("sales")} == {"ended"}


async def test_sources_come_and_go(tmp_path: Path) -> None:
    """It is told of in the store as long as it runs; of a source that was dropped no file is left."""
    async with sales(tmp_path, replicas=2) as sources, supervised(sources, tmp_path) as task:
        first = await until_ingested_by(sources, {"1", "2"})
        assert [each.pid for each in (await sources.describe("sales")).supervisors] == [os.getpid()]
        await sources.create(definition(tmp_path, "others"))
        await until_ingested_by(sources, {"1"}, "others")
        assert running() == first
        await sources.drop("sales")

        async def is_forgotten() -> bool:
            return not list((tmp_path / "store" / "sources").glob("sales*"))

        await until_async(is_forgotten, "no file is left")
        assert running() == {}
        assert await sources.instances("sales") == []
        assert running("others")
        assert not task.done()
        await sources.drop("others")
        async with asyncio.timeout(30):
            assert await task == "idle"
        assert await sources.supervisors() == []


async def test_an_instance_that_is_deaf_to_its_end_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("nebuli.ingestion.running.supervised_process._STOP_S", 0.2)
    async with sales(tmp_path) as sources:
        async with supervised(sources, tmp_path):
            pids = await until_ingested_by(sources, {"1"})
            os.kill(pids["1"], signal.SIGSTOP)
        assert not psutil.pid_exists(pids["1"])


@contextmanager
def standing_in(lock: ProcessLock) -> Iterator[Forked]:
    """A process that holds an instance's lock, as one that a former supervisor has started."""
    program = start_program(_STAND_IN, lock.path)
    try:
        assert program.stdout.readline() == b"held\n"
        yield program
    finally:
        program.kill()
        program.wait(60)
        program.stdout.close()


_STAND_IN = """
import sys, time
from pathlib import Path
from nebuli.ingestion.running.process_lock import ProcessLock

with ProcessLock(Path(sys.argv[1]), "").held(supervised=True):
    print("held", flush=True)
    time.sleep(600)
"""


async def test_what_a_former_supervisor_has_left_is_adopted_and_what_is_not_to_be_is_ended(
    tmp_path: Path,
) -> None:
    """An instance is there once under its name: what is there is not started a second time."""
    async with sales(tmp_path) as sources:
        files = SupervisorFiles.at(tmp_path / "store", tmp_path)
        with (
            standing_in(files.instance("sales", "1")) as one,
            standing_in(files.instance("sales", "2")) as two,
        ):
            assert [(name, holder.pid) for _, name, holder in files.supervised()] == [
                ("1", one.pid),
                ("2", two.pid),
            ]
            async with supervised(sources, tmp_path):
                await asyncio.to_thread(two.wait, 30)
                assert (one.poll(), running()) == (None, {})
            assert one.wait(30) == -signal.SIGTERM


async def test_a_process_that_came_to_the_pid_of_an_instance_is_left_alone(tmp_path: Path) -> None:
    """A pid comes again, after a restart of the machine at the latest."""
    files = SupervisorFiles.at(tmp_path, tmp_path)
    with standing_in(files.instance("sales", "1")) as program:
        ((_, _, holder),) = files.supervised()
        assert (holder.pid, holder.is_running) == (program.pid, True)
        other = replace(holder, started=holder.started - 1)
        assert SupervisedProcess.adopted(other) is None
        await end_process(other)
        assert program.poll() is None
        await end_process(holder)
        assert program.wait(30) == -signal.SIGTERM
    assert not [*files.supervised()]
    assert SupervisedProcess.adopted(holder) is None


async def test_there_is_one_of_a_store_on_a_host(tmp_path: Path) -> None:
    """A second one hears which process is; whoever has been it leaves nothing behind that would keep others out."""
    files = SupervisorFiles.at(tmp_path, tmp_path / "state")
    lock = files.supervisor
    assert lock.holder() is None
    for _ in range(2):
        with lock.held():
            assert lock.holder() == LockHolder.own(supervised=False)
            with (
                pytest.raises(
                    SourceRefused,
                    match=f"sources of this store are run on this host by process {os.getpid()} already",
                ),
                lock.held(),
            ):
                pass
            with files.instance("other", "1").held():
                assert not [*files.supervised()]
        assert lock.holder() is None
    with pytest.raises(SourceRefused, match="'a/b' cannot be the name of an instance"):
        files.instance("sales", "a/b")


async def test_the_files_of_a_source_are_removed_unless_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lock that is removed between the moment it is opened and that it is had locks nobody out."""
    files = SupervisorFiles.at(tmp_path, tmp_path / "state")
    lock, log = files.instance("sales", "1"), files.log("sales")
    log.touch()
    files.log("sales.raw").touch()
    with lock.held(), files.instance("sales", "2").held():
        files.remove("sales")
        assert (lock.path.exists(), log.exists()) == (True, True)
    files.remove("sales")
    files.remove("sales")
    assert files.sources() == {"sales.raw"}

    flock, calls = fcntl.flock, 0

    def removed_before(file: Any, how: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            lock.path.unlink()
        flock(file, how)

    monkeypatch.setattr(fcntl, "flock", removed_before)
    with lock.held():
        assert lock.holder() == LockHolder.own(supervised=False)
        assert calls == 3  # on the one that was removed, on the other one, and of whoever asks


def test_a_store_by_url_is_told_to_instances_whole_and_has_its_lock_beside_others(tmp_path: Path) -> None:
    """With the password, which no list of processes shows; the lock is in this account's folder, by the URL."""
    url = StoreUrl("postgresql://me:hidden@h/db", "a", "s3://bucket/prefix")
    files = [SupervisorFiles.at(each, tmp_path / "state") for each in (url, url / "b", tmp_path)]
    lock = files[0].instance("sales", "1")
    assert read_order(order(url, lock)) == (url, lock)
    assert read_order(order(tmp_path, lock)) == (tmp_path, lock)
    assert len({each.supervisor.path for each in files}) == 3
    assert [each.supervisor.path.is_relative_to(tmp_path / "state") for each in files] == [True, True, False]


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
