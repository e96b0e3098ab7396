"""One query from a sender to a receiver through Spark, whose four kinds of processes are killed while it runs."""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import psutil

from netchannel import group_client
from tests.soak_spark.faults import POINTS, arm, noted, struck
from tests.support.ports import free_addresses
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
SOURCES = ("in/a", "in/b")
"""By name each is a key of another sink: an epoch has a commit for each of the two."""
SINKS = ("out/0", "out/1")
VICTIMS = ("driver", *(f"driver {point} the commits" for point in POINTS), "worker", "source", "sink")
"""What is killed: at any point, but for a driver at one of its commits, and a worker within a task."""
QUIET_S = 120.0
"""With nothing new for so long, the run is stuck."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much is sent, and how often something is killed. Triggers are as many as rows need."""

    rows: int  # per source
    rows_per_trigger: int
    kills: dict[str, int]  # of VICTIMS
    steady_triggers: int = 0  # at the end, without kills


@dataclass(slots=True)
class Tally:
    """What happened."""

    triggers: int = 0  # by Spark's own count
    kills: Counter[str] = field(
        default_factory=Counter
    )  # of processes that were running, with rows left to be sent
    tasks: Counter[str] = field(default_factory=Counter)  # those that were weak, and those that were retried
    failures: list[str] = field(default_factory=list)
    memory: list[dict[str, int]] = field(default_factory=list)  # of the last driver
    rows: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0


class Process:
    """A module of this package in a process group of its own, with its lines and its last words."""

    def __init__(self, module: str, *arguments: str, errors: Path) -> None:
        self.errors = errors
        self.lines: SimpleQueue[str] = SimpleQueue()
        with errors.open("ab") as stderr:
            self._process = subprocess.Popen(
                [sys.executable, "-m", f"tests.soak_spark.{module}", *arguments],
                cwd=ROOT,
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "SOAK_FAULTS": str(errors.parent),
                    "SPARK_LOCAL_IP": "127.0.0.1",
                },
                stdout=subprocess.PIPE,
                stderr=stderr,
                stdin=subprocess.DEVNULL,
                encoding="utf-8",
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.lines.put(line)

    @property
    def code(self) -> int | None:
        """The exit code; None while it runs."""
        return self._process.poll()

    def children(self) -> list[psutil.Process]:
        """All processes below it."""
        try:
            return psutil.Process(self._process.pid).children(recursive=True)
        except psutil.Error:
            return []

    def kill(self) -> None:
        """At once, with everything below it."""
        below = self.children()
        if self.code is None:
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._reader.join()
        assert self._process.stdout is not None
        self._process.stdout.close()
        psutil.wait_procs(below, timeout=20)  # Python's workers end when the JVM has

    def said(self) -> str:
        """The end of what it wrote on stderr."""
        return self.errors.read_text(errors="replace", encoding="utf-8")[-4000:]


class Run:
    """All processes, from the first row to the last one."""

    def __init__(self, plan: Plan, folder: Path, seed: int, say: Callable[[str], None]) -> None:
        self._plan, self._folder, self._say = plan, folder, say
        self._random = random.Random(seed)
        self._source, self._sink = free_addresses(2)
        self._database = folder / "taken.sqlite"
        self._processes: dict[str, Process] = {}
        self._left: tuple[int, list[bool]] = (-1, [])
        self.tally = Tally()

    def run(self) -> Tally:
        """Raises AssertionError if a row is lost, doubled or out of order, or nothing goes on."""
        began = time.monotonic()
        try:
            for name in ("source", "sink", "driver"):
                self._start(name)
            for victim, trigger in zip(self._victims(), self._triggers(), strict=True):
                self._until(lambda trigger=trigger: self.tally.triggers >= trigger or self._done())
                threading.Event().wait(self._random.random() * 0.4)
                self._kill(victim)
            self._follow_to_the_end()
        finally:
            for process in self._processes.values():
                process.kill()
        self.tally.seconds = time.monotonic() - began
        return self.tally

    def _victims(self) -> list[str]:
        victims = [name for name, times in self._plan.kills.items() for _ in range(times)]
        self._random.shuffle(victims)
        return victims

    def _triggers(self) -> list[int]:
        """After which to kill, so that there are rows for all of them."""
        triggers = len(SOURCES) * self._plan.rows // self._plan.rows_per_trigger - self._plan.steady_triggers
        return sorted(self._random.choices(range(1, triggers * 4 // 5), k=sum(self._plan.kills.values())))

    def _start(self, name: str) -> None:
        rows = str(self._plan.rows)
        arguments = {
            "source": ("produce", str(self._folder / "kept"), self._source, rows, *SOURCES),
            "sink": ("consume", str(self._folder / "staged"), self._sink, str(self._database), *SINKS),
            "driver": (
                *("query", self._source, self._sink, ",".join(SOURCES)),
                *(str(self._plan.rows_per_trigger), str(self._folder / "checkpoint")),
            ),
        }[name]
        module, *rest = arguments
        if name == "driver" and name in self._processes:
            self._left = self._newest_epoch()
        self._processes[name] = Process(module, *rest, errors=self._folder / f"{name}.log")
        if name == "driver":
            self.tally.memory = []

    def _kill(self, victim: str) -> None:
        self._look_after()
        assert not self._done(), f"all rows had come before the {victim} was killed"
        if victim == "worker":
            self._kill_worker()
        elif victim in ("driver", "source", "sink"):
            process = self._processes[victim]
            assert process.code is None, f"the {victim} has ended with {process.code}:\n{process.said()}"
            process.kill()
            assert process.code == -signal.SIGKILL
            threading.Event().wait(self._random.choice([0.0, 0.5]))
            self._start(victim)
        else:
            self._kill_driver(victim.split()[1])
            self._start("driver")
        self.tally.kills[victim] += 1
        self._say(
            f"killed the {victim} after {self.tally.triggers} triggers, {sum(self._taken().values())} rows"
        )

    def _kill_worker(self) -> None:
        """One that has given all rows of a task."""
        arm(self._folder, "worker")
        worker = psutil.Process(wait_for(lambda: struck(self._folder, "worker"), "a task", QUIET_S))
        worker.kill()
        psutil.wait_procs([worker], timeout=20)
        assert not worker.is_running()

    def _kill_driver(self, point: str) -> None:
        """Have it killed at that point of the commits of an epoch; its checkpoint and the sink show that it was."""
        driver = self._processes["driver"]
        arm(self._folder, point)
        wait_for(lambda: driver.code is not None, f"the driver dies {point} the commits", QUIET_S)
        assert driver.code == -signal.SIGKILL, driver.said()
        assert struck(self._folder, point)
        driver.kill()
        epoch, published = self._newest_epoch()
        assert _newest(self._folder / "checkpoint" / "commits") == epoch - 1
        again, of_before = self._left  # a driver that was killed in this very epoch may have published it
        for index, has in enumerate(published):
            expected = index < POINTS.index(point) or (again == epoch and of_before[index])
            assert has == expected, (point, epoch, published, self._left)

    def _newest_epoch(self) -> tuple[int, list[bool]]:
        """That which Spark has begun last, by its checkpoint, and whether each channel of the sink has it.

        Asked while no driver runs.
        """
        checkpoint = self._folder / "checkpoint"
        epoch = _newest(checkpoint / "offsets")
        if epoch < 0:
            return epoch, []
        query = json.loads((checkpoint / "metadata").read_text("utf-8"))["id"]
        return epoch, [self._has(channel, query, epoch) for channel in SINKS]

    def _has(self, channel: str, query: str, epoch: int) -> bool:
        """Whether the epoch is published there."""
        with group_client(self._sink, channel) as client:
            return client.last_epoch(query) == epoch

    def _follow_to_the_end(self) -> None:
        self._until(self._done)
        self._until(lambda: self._processes["source"].code is not None)
        assert self._processes["source"].code == 0, self._processes["source"].said()
        self.tally.rows = self._taken()
        self.tally.tasks = noted(self._folder)
        assert self.tally.rows == dict.fromkeys(SOURCES, self._plan.rows)

    def _done(self) -> bool:
        return sum(self._taken().values()) >= len(SOURCES) * self._plan.rows

    def _until(self, condition: Callable[[], bool]) -> None:
        quiet_since, before = time.monotonic(), (0, 0)
        while not condition():
            self._hear()
            self._look_after()
            now = (self.tally.triggers, sum(self._taken().values()))
            if now != before:
                quiet_since, before = time.monotonic(), now
            assert time.monotonic() - quiet_since < QUIET_S, "\n".join(
                ["nothing goes on", *(f"{name}:\n{each.said()}" for name, each in self._processes.items())]
            )

    def _hear(self) -> None:
        """What the driver says, waited for a moment."""
        try:
            line: dict[str, Any] = json.loads(self._processes["driver"].lines.get(timeout=0.2))
        except (Empty, json.JSONDecodeError):
            return
        if "batch" in line:
            self.tally.triggers = max(self.tally.triggers, line["batch"] + 1)
        elif "memory" in line:
            self.tally.memory.append(line["memory"])

    def _look_after(self) -> None:
        """A query that has failed is started again, as its user would; a server that has failed ends the run."""
        for name, process in self._processes.items():
            if process.code is None or (name, process.code) == ("source", 0):
                continue
            if name != "driver":
                raise AssertionError(f"the {name} has ended with {process.code}:\n{process.said()}")
            self.tally.failures.append(process.said())
            self._say(f"the driver has failed: {process.said()[-600:]}")
            assert len(self.tally.failures) <= sum(self._plan.kills.values()), process.said()
            process.kill()
            self._start(name)
            return

    def _taken(self) -> dict[str, int]:
        if not self._database.exists():
            return {}
        base = sqlite3.connect(self._database, timeout=30)
        try:
            return dict(base.execute("SELECT source, SUM(next) FROM sources GROUP BY source").fetchall())
        except sqlite3.OperationalError:
            return {}  # it has no tables yet
        finally:
            base.close()


def _newest(folder: Path) -> int:
    """The last epoch of which Spark has written a file there: in offsets as it begins, in commits as it has ended.

    -1 if there is none.
    """
    return max((int(each.name) for each in folder.glob("*") if each.name.isdecimal()), default=-1)
