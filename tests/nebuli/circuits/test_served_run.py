"""``nebuli run --stepped --serve``: a circuit as a process, which is killed, and started again."""

from __future__ import annotations

import asyncio
import shutil
import signal
from collections import Counter
from pathlib import Path

import pytest

from nebuli.circuits import Circuit
from tests.nebuli.circuits.conftest import QUERY, TOPOLOGY, Rows, batch, read_until
from tests.support.commands import Command, nebuli
from tests.support.ports import free_addresses
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]


@pytest.fixture
def options(tmp_path: Path) -> list[str | Path]:
    """Of the run, but for where it is served."""
    (tmp_path / "topology.yaml").write_text(TOPOLOGY, "utf-8")
    (tmp_path / "query.json").write_text(QUERY, "utf-8")
    return [
        *("run", tmp_path / "topology.yaml", tmp_path / "query.json"),
        *("--stepped", "--members", "2", "--state", tmp_path / "state"),
    ]


@pytest.mark.story
async def test_a_circuit_that_is_killed_whole_is_waited_for_and_loses_nothing(
    options: list[str | Path], tmp_path: Path
) -> None:
    """DBSP-REQ-8, DBSP-REQ-10: coordinator and members go by kill -9; who pushes and who reads go on as it is back."""
    (address,) = free_addresses(1)
    expected: Rows = Counter(("x", number) for number in range(20))

    async def push_all(circuit: Circuit) -> None:
        for number in range(20):
            await circuit.push("a", batch(("x", number)), producer="p", sequence=number)

    first = Command(*options, "--serve", address, directory=tmp_path)
    await asyncio.to_thread(first.wait_until_said, "serving at")
    async with asyncio.timeout(120), Circuit(address, deadline_s=60.0) as circuit:
        reading = asyncio.create_task(read_until(circuit, "rows", expected))
        pushing = asyncio.create_task(push_all(circuit))

        async def some_are_there() -> bool:
            return await circuit.next_sequence("a", "p") >= 5

        await until_async(some_are_there, "5 pushes")
        first.process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(first.end)
        second = Command(*options, "--serve", address, directory=tmp_path)
        await pushing
        steps = [step for step, _ in await reading]
        assert steps == list(range(len(steps)))
        await circuit.shut_down()
    ended = await asyncio.to_thread(second.end)
    assert ended.exit_code == 0, ended.stderr
    lines = (tmp_path / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    assert lines == ["shop,sales,amount", f"x,20,{sum(range(20))}"]


@pytest.mark.parametrize("phase", ["serving at", "running, from the beginning"])
async def test_shut_down_at_once_the_result_has_all_that_was_pushed(
    options: list[str | Path], phase: str, tmp_path: Path
) -> None:
    """As soon as it is served, before its members are in step, and once they are."""
    (address,) = free_addresses(1)
    command = Command(*options, "--serve", address, directory=tmp_path)
    await asyncio.to_thread(command.wait_until_said, phase)
    async with asyncio.timeout(60), Circuit(address, deadline_s=30.0) as circuit:
        for number in range(20):
            await circuit.push("a", batch(("x", number)), producer="p", sequence=number)
        await circuit.shut_down()
    ended = await asyncio.to_thread(command.end)
    assert ended.exit_code == 0, ended.stderr
    lines = (tmp_path / "totals.csv").read_text("utf-8").replace('"', "").splitlines()
    assert lines == ["shop,sales,amount", f"x,20,{sum(range(20))}"]


@pytest.mark.parametrize(
    ("serve", "error"),
    [
        ([], "attached to a, b, c: "),
        (["--serve", "0.0.0.0:0"], "can be reached from other machines"),
        (["--serve", "here"], "--serve: "),
    ],
)
def test_what_cannot_be_served_is_refused(
    options: list[str | Path], serve: list[str], error: str, tmp_path: Path
) -> None:
    ended = nebuli(*options, *serve, directory=tmp_path)
    assert ended.exit_code == 2
    assert error in ended.error


def test_a_port_that_is_in_use_is_named(options: list[str | Path], tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    first = Command(*options, "--serve", address, directory=tmp_path)
    first.wait_until_said("serving at")
    other = tmp_path / "other"  # with a sink of its own
    other.mkdir()
    topology, query = (shutil.copy(tmp_path / name, other) for name in ("topology.yaml", "query.json"))
    second = nebuli(
        "run", topology, query, *options[3:-1], other / "state", "--serve", address, directory=other
    )
    first.process.send_signal(signal.SIGINT)
    assert first.end().exit_code == 130
    assert second.exit_code == 2
    assert address in second.error
