"""Members as tasks of Spark: Python workers, executors, drivers and all of it are killed while programs push."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from nebuli.circuits import Circuit
from nebuli.store.store_url import StoreUrl
from tests.nebuli.circuits.traffic import Traffic, traffic_on
from tests.nebuli.steps.spark.conftest import SPARK_S, Run, check_totals, descendants
from tests.support.standalone_spark import standalone_cluster
from tests.support.waiting import until_async

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.timeout(580)]

WORKER, EXECUTOR, DRIVER, JAVA = (
    "pyspark.daemon",
    "CoarseGrainedExecutorBackend",
    "nebuli.steps.spark.stage_driver",
    "pyspark-shell",
)


@asynccontextmanager
async def busy(run: Run) -> AsyncIterator[tuple[Circuit, Traffic]]:
    """The circuit, while producers push and a reader reads; at the end it is shut down, and every row counts once."""
    run.start()
    await asyncio.to_thread(run.command.wait_until_said, "serving at")
    async with Circuit(run.address, deadline_s=150.0) as circuit:
        async with traffic_on(circuit, seed=4, producers=3, outputs=("rows",), within_s=SPARK_S) as traffic:
            await traffic.goes_on()
            yield circuit, traffic
            await traffic.goes_on()
        await circuit.shut_down()
    ended = await asyncio.to_thread(run.end)
    assert ended.exit_code == 0, ended.stderr
    check_totals(run.folder, traffic.pushed)


async def kill(processes: Callable[[], list[psutil.Process]], part: str) -> None:
    """One of them with this in its command, once there is one: the newest, by SIGKILL.

    Rows may go on before what was killed last has a successor: members outlive their driver for a while.
    """

    async def there() -> list[psutil.Process]:
        return descendants(processes(), part)

    found = await until_async(there, f"{part} is there", 60.0)
    max(found, key=lambda each: each.create_time()).kill()


async def all_killed(run: Run, others: list[psutil.Process]) -> None:
    """The command, by SIGKILL: nothing outlives it, and ``others`` are what it has begun elsewhere."""
    left = [*run.everything(), *others]
    assert len(left) > 3
    run.command.process.kill()
    await asyncio.to_thread(run.end)
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, 30)
    assert not alive


async def test_in_one_process_workers_and_drivers_and_all_are_killed(tmp_path: Path, runs: list[Run]) -> None:
    """DBSP-REQ-2, on local[4]: every row counts once; nothing outlives the command; it goes on with more members."""
    run = Run(tmp_path, tmp_path / "state", 2, "local[4]")
    runs.append(run)
    async with busy(run) as (circuit, traffic):
        await kill(run.everything, WORKER)
        await traffic.goes_on()
        await kill(run.everything, DRIVER)
        await traffic.goes_on()
        await kill(run.everything, JAVA)
        await traffic.goes_on()
        await all_killed(run, [])
        run.start()
        await traffic.goes_on()
        await circuit.scale(3)
        assert len((await circuit.status()).members) == 3


async def test_on_a_local_cluster_workers_and_executors_are_killed(tmp_path: Path, runs: list[Run]) -> None:
    """DBSP-REQ-2, on local-cluster[2,2,1024]: an executor is another process, which Spark replaces."""
    run = Run(tmp_path, tmp_path / "state", 3, "local-cluster[2,2,1024]")
    runs.append(run)
    async with busy(run) as (_, traffic):
        await kill(run.everything, WORKER)
        await traffic.goes_on()
        await kill(run.everything, EXECUTOR)


async def test_on_a_cluster_workers_executors_drivers_and_all_are_killed(
    tmp_path: Path, runs: list[Run], url: StoreUrl, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBSP-REQ-2, on a standalone cluster, with all state in PostgreSQL and a bucket: no disk is shared."""
    monkeypatch.setenv("SPARK_LOCAL_IP", "127.0.0.1")
    here = psutil.Process()
    with standalone_cluster(tmp_path, workers=2) as master:
        run = Run(tmp_path, str(url), 2, master)
        runs.append(run)
        async with busy(run) as (_, traffic):
            await kill(lambda: here.children(recursive=True), WORKER)
            await traffic.goes_on()
            await kill(lambda: here.children(recursive=True), EXECUTOR)
            await traffic.goes_on()
            await kill(run.everything, DRIVER)
            await traffic.goes_on()
            await all_killed(run, descendants(here.children(recursive=True), WORKER, EXECUTOR))
            run.start()
    assert not [*tmp_path.glob("state*")]


def test_too_few_slots_are_an_error_at_the_start(tmp_path: Path, runs: list[Run]) -> None:
    run = Run(tmp_path, tmp_path / "state", 3, "local[2]")
    runs.append(run)
    run.start()
    ended = run.end()
    assert ended.exit_code == 1
    assert "Error: 3 members hold 3 slots of Spark as long as they run, but local[2] has 2" in ended.stderr
    assert "Traceback" not in ended.stderr
