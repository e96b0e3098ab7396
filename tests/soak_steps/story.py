"""A story: a run in steps whose processes and disks a seed has things happen to, until it has come to its end."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sqlite3
import sys
import time
from asyncio.subprocess import PIPE, Process
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from random import Random

from nebuli.store import Store
from nebuli.store.ordering.sqlite import FILE
from tests.soak_steps.audit import Audit, Violation
from tests.soak_steps.query import OUTPUTS, Sizes, expected, found, prepare, query
from tests.support.waiting import until_async

FAULTS = (
    "member killed",
    "coordinator killed",
    "member stopped",
    "connections cut",
    "connections half open",
    "disk slow",
    "disk full",
)
"""What can happen. Connections: those from the coordinator to a member."""
_ROOT = Path(__file__).parents[2]
_END_S = 10.0
"""Within so many seconds after a coordinator was killed its members have ended."""
_FOR_ALL_S = 200.0
_EPOCHS = 25
"""More than faults can end."""


class Story:
    """From a seed: ``members``, ``faults`` things that happen, in a folder of its own."""

    def __init__(self, seed: int, folder: Path, *, faults: int = 8, sizes: Sizes | None = None) -> None:
        self.random = Random(seed)
        self.members = self.random.choice([1, 2, 2, 3])
        self.sizes = sizes or Sizes()
        self.folder = folder
        self.tally: Counter[str] = Counter()
        self.said: list[str] = []
        self._faults = faults
        self._audit = Audit(query(self.sizes, self.members), folder / "state")
        self._process: Process | None = None
        self._reading: list[asyncio.Task[None]] = []
        self._disk_was_full = False
        self._heard_steps = 0
        self._began = time.monotonic()

    async def run(self) -> None:
        """Raises Violation, and TimeoutError where it does not end."""
        self.folder.mkdir(exist_ok=True)
        prepare(self.folder)
        try:
            async with asyncio.timeout(_FOR_ALL_S):
                while not await self._one_coordinator():
                    await self._audit.check()
        finally:
            await self._end()
        await self._audit.check()
        self.tally["audits"] += self._audit.times
        self.tally["steps"] += max(self._audit.last.values())
        self.tally["two versions"] += self._audit.both
        wanted = expected(self.sizes)
        for output in OUTPUTS:
            if found(self.folder, output) != wanted[output]:
                missing = wanted[output] - found(self.folder, output)
                more = found(self.folder, output) - wanted[output]
                raise Violation(f"{output}: {missing} is missing, {more} is too much")

    async def _one_coordinator(self) -> bool:
        """From its start to its end; whether it came to the end of the query."""
        numbers = (self.members, self.sizes.sources, self.sizes.rows, self.sizes.rate)
        process = self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tests.soak_steps.coordinating", str(self.folder), *map(str, numbers)),
            cwd=_ROOT,
            stdin=PIPE,
            stdout=PIPE,
            stderr=PIPE,
        )
        assert process.stdout is not None
        assert process.stderr is not None
        self._reading = [
            asyncio.create_task(self._read(process.stdout, self._hear)),
            asyncio.create_task(self._read(process.stderr, self._complain)),
        ]
        while process.returncode is None and self._faults:
            await self._wait_for_steps(process, self.random.choice([0, 1, 2, 3, 5, 8]))
            if process.returncode is None:
                await self._happen(process)
        code = await process.wait()
        await asyncio.gather(*self._reading)
        await self._members_end(process.pid)
        if code == 1 and self._disk_was_full:
            self.tally["given up for a full disk"] += 1
            self._disk_was_full = False
        elif code == 1 and "the last time: killed by SIGKILL), without progress" in self.said[-1]:
            self.tally["given up for kills"] += 1
        elif code not in (0, -signal.SIGKILL):
            raise Violation(f"the run ended with {code}: " + "\n".join(self.said[-20:]))
        return code == 0

    async def _wait_for_steps(self, process: Process, steps: int) -> None:
        """Or for the end, or not that long: what happens meanwhile may be why there are none."""
        until = self._heard_steps + steps

        async def come() -> bool:
            return self._heard_steps >= until or process.returncode is not None

        with suppress(AssertionError):
            await until_async(come, "steps", 15.0 if steps else 0.1)

    async def _read(self, stream: asyncio.StreamReader, take: Callable[[str], None]) -> None:
        async for line in stream:
            text = line.decode().rstrip()
            self.said.append(f"{time.monotonic() - self._began:.3f} {text}")
            take(text)

    def _hear(self, text: str) -> None:
        self._heard_steps += text.startswith("step ")
        for what in ("epoch over", "checkpoint", "no checkpoint", "ended"):
            if text.startswith(what + " "):
                self.tally[what] += 1

    def _complain(self, text: str) -> None:
        if "differ from the rows in output log" in text or "Traceback" in text:
            self.tally["complaints"] += 1

    async def _members_end(self, parent: int) -> None:
        async def gone() -> bool:
            return not self._of_folder()

        await until_async(gone, f"the members of {parent} have ended", _END_S)

    def _of_folder(self) -> list[int]:
        """The members' processes of this story, whoever their parent is."""
        pids = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with suppress(OSError):
                    if b"nebuli member " in (entry / "cmdline").read_bytes().replace(b"\0", b" ") and (
                        (entry / "cwd").readlink() == self.folder
                    ):
                        pids.append(int(entry.name))
        return pids

    async def _end(self) -> None:
        process = self._process
        if process is not None and process.returncode is None:
            process.kill()
            await process.wait()
        await asyncio.gather(*self._reading, return_exceptions=True)
        for pid in self._of_folder():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    # -- what happens

    async def _happen(self, process: Process) -> None:
        ways: dict[str, Callable[[Process], Awaitable[bool]]] = {
            "member killed": self._kill_member,
            "coordinator killed": self._kill_coordinator,
            "member stopped": self._stop_member,
            "connections cut": lambda of: self._tell(of, "cut"),
            "connections half open": lambda of: self._tell(of, "swallow"),
            "disk slow": self._slow_disk,
            "disk full": self._full_disk,
        }
        name = self.random.choices(FAULTS, weights=(4, 1, 1, 1, 1, 1, 1))[0]
        if await ways[name](process):
            self.tally[name] += 1
            self.said.append(f"{time.monotonic() - self._began:.3f} * {name}")
            self._faults -= 1
        await self._look()

    async def _look(self) -> None:
        """The versions, while all goes on."""
        for member in range(self.members):
            folder = self.folder / "state" / f"member-{member}"
            if (folder / FILE).exists():
                async with Store.at(folder) as store:
                    await self._audit.versions(store, member)

    def _some_member(self) -> int | None:
        pids = self._of_folder()
        return self.random.choice(sorted(pids)) if pids else None

    async def _kill_member(self, process: Process) -> bool:
        pid = self._some_member()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid is not None

    async def _kill_coordinator(self, process: Process) -> bool:
        process.kill()
        await process.wait()
        return True

    async def _stop_member(self, process: Process) -> bool:
        pid = self._some_member()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGSTOP)
            await asyncio.sleep(self.random.choice([0.05, 0.5, 4.0]))
            os.kill(pid, signal.SIGCONT)
        return True

    async def _tell(self, process: Process, what: str) -> bool:
        assert process.stdin is not None
        if not self._of_folder():
            return False
        with suppress(ConnectionError):
            process.stdin.write(f"{what} {self.random.randrange(self.members)}\n".encode())
            await process.stdin.drain()
        return True

    async def _slow_disk(self, process: Process) -> bool:
        """Somebody else writes for a while: nobody else can."""
        path = self.folder / "state" / f"member-{self.random.randrange(self.members)}" / FILE
        if not path.exists():
            return False
        connection = sqlite3.connect(path, isolation_level=None, timeout=0.0)
        try:
            connection.execute("begin immediate")
            await asyncio.sleep(self.random.choice([0.1, 0.5, 1.0]))
            connection.execute("rollback")
        except sqlite3.OperationalError:
            return False
        finally:
            connection.close()
        return True

    async def _full_disk(self, process: Process) -> bool:
        """Files of one member grow no more, for a while."""
        pid = self._some_member()
        if pid is None:
            return False
        with suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
            self._disk_was_full = True
            await asyncio.sleep(self.random.choice([0.05, 0.3]))
            with suppress(ProcessLookupError):
                resource.prlimit(pid, resource.RLIMIT_FSIZE, (hard, hard))
        return True


async def tell(seed: int, folder: Path, *, faults: int = 8, sizes: Sizes | None = None) -> Story:
    """The whole story. Raises Violation, with what was said last."""
    story = Story(seed, folder, faults=faults, sizes=sizes)
    began = time.monotonic()
    try:
        await story.run()
        if story.tally["complaints"]:
            raise Violation("something was complained of")
        if story.tally["epoch over"] > _EPOCHS:
            raise Violation("one epoch follows another, long after what ended the first of them")
    except BaseException as error:
        error.add_note(f"in story {seed}, with {story.members} members, {dict(story.tally)}")
        error.add_note("\n".join(story.said[-40:]))
        raise
    story.tally["seconds"] = round(time.monotonic() - began)
    return story
