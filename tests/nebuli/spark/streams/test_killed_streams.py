"""Everything between files and a circuit is killed in turn, and each batch is in one step, once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.nebuli.spark.streams import faults
from tests.nebuli.spark.streams.served_circuit import Rows, ServedCircuit, holders, totals
from tests.support.waiting import wait_for

pytestmark = [pytest.mark.spark, pytest.mark.processes, pytest.mark.long, pytest.mark.timeout(1500)]

ROOT = Path(__file__).parents[4]
_WITHIN_S = 300.0


class Driver:
    """The driver's process, and the files that it reads, one for each batch."""

    def __init__(self, folder: Path, circuit: ServedCircuit) -> None:
        self.faults, self._files = folder / "faults", folder / "files"
        self.checkpoint = folder / "checkpoint"
        self.batches: list[Rows] = []
        self._circuit = circuit
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None
        for each in (self.faults, self._files):
            each.mkdir()

    def start(self) -> None:
        command = [sys.executable, "-m", "tests.nebuli.spark.streams.driver"]
        arguments = [str(self._files), self._circuit.address, str(self.checkpoint)]
        environment = os.environ | {"STREAM_FAULTS": str(self.faults), "PYTHONPATH": str(ROOT)}
        with self._log.open("wb") as said:
            self._process = subprocess.Popen(
                [*command, *arguments],
                env=environment,
                stdout=said,
                stderr=said,
                start_new_session=True,
                cwd=ROOT,
            )

    def give(self, rows: int = 90) -> None:
        """One more batch: a file that is there at once."""
        number = len(self.batches)
        some = [(f"shop-{row % 7}", number * 1000 + row) for row in range(rows)]
        lines = "".join(f'{{"shop": "{shop}", "amount": {amount}}}\n' for shop, amount in some)
        aside = self._files / f".{number:04}"
        aside.write_text(lines, "utf-8")
        aside.rename(self._files / f"{number:04}.json")
        self.batches.append(Counter(some))

    def strike(self, fault: str) -> None:
        """Have a fault happen in the next batch."""
        faults.arm(self.faults, fault)
        self.give()
        wait_for(
            lambda: faults.struck(self.faults, fault) or self.is_over(), f"{fault} has happened", _WITHIN_S
        )
        assert faults.struck(self.faults, fault), self._log.read_text("utf-8")

    def is_over(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def until_over(self) -> str:
        """What it says at its end."""
        wait_for(self.is_over, "the driver has ended", _WITHIN_S)
        return self._log.read_text("utf-8")

    def until_written(self) -> None:
        """Wait until Spark has noted all batches."""
        last = self.checkpoint / "commits" / str(len(self.batches) - 1)
        wait_for(lambda: last.exists() or self.is_over(), f"{last} is there", _WITHIN_S)
        assert last.exists(), self._log.read_text("utf-8")

    def kill(self) -> None:
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(30)
            self._process = None


@pytest.fixture
def driver(tmp_path: Path, circuit: ServedCircuit) -> Iterator[Driver]:
    made = Driver(tmp_path, circuit)
    yield made
    made.kill()


def test_whatever_is_killed_each_batch_is_in_one_step_once(driver: Driver, circuit: ServedCircuit) -> None:
    """DBSP-REQ-8: worker, task, member, circuit and driver, at the points where something could be lost or doubled."""
    driver.start()
    for fault in ("worker", "weak"):
        driver.strike(fault)
        driver.until_written()

    driver.strike("member")  # all is staged, and not pushed
    for member in range(2):
        circuit.kill_member(member)
    faults.release(driver.faults, "member")
    driver.until_written()

    driver.strike("circuit")
    circuit.kill()
    circuit.start()
    faults.release(driver.faults, "circuit")
    driver.until_written()

    for point in faults.KILLS:
        driver.strike(point)
        driver.until_over()
        driver.kill()
        batch = len(driver.batches) - 1
        assert (driver.checkpoint / "offsets" / str(batch)).exists() or point == "planned"
        assert not (driver.checkpoint / "commits" / str(batch)).exists()
        driver.start()
        driver.until_written()

    driver.strike("scaled")  # members that are others have nothing of what was staged
    with circuit.called() as called:
        called.scale(3)
    faults.release(driver.faults, "scaled")
    said = driver.until_over()
    assert "BatchLost" in said
    batch = len(driver.batches) - 1
    assert f"input sales, query {query_id(driver)}, batch {batch}: " in said
    driver.kill()
    driver.start()
    driver.until_written()

    expected: Rows = sum(driver.batches, Counter())
    steps = circuit.steps("rows", expected)
    assert [holders(steps, batch) for batch in driver.batches] == [1] * len(driver.batches)
    circuit.steps("totals", totals(expected))
    with circuit.called() as called:
        assert called.next_sequence("sales", f"spark query {query_id(driver)}") == len(driver.batches)


def query_id(driver: Driver) -> str:
    found: str = json.loads((driver.checkpoint / "metadata").read_text("utf-8"))["id"]
    return found
