"""Nodes as processes, and what befalls them: they are killed and started again, stopped and let go on."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from .anomalies import Violation
from .clients import Gone
from .forking import Forked, forked
from .outages import FAULTS

STARTING_S = 60.0


class NodeProcess:
    """A node that is a process; ``faults`` counts what has failed in its store."""

    def __init__(self, name: str, folder: Path, random: Random, one_in: int, faults: Counter[str]) -> None:
        self._name = name
        self._folder = folder
        self._random = random
        self._one_in = one_in
        self._faults = faults
        self._forked: Forked | None = None
        self._readers: list[asyncio.Task[None]] = []
        self._waiting: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._asked = 0
        self._log: list[str] = []
        self._is_up = False

    @property
    def is_up(self) -> bool:
        """Whether it has begun, and has not ended, as far as is known."""
        return self._is_up

    async def start(self, names: Sequence[str]) -> None:
        """Start it, and tell it who it is. Raises TimeoutError."""
        seed = self._random.randrange(1 << 32)
        process = await forked([str(self._folder), "--seed", str(seed), "--one-in", str(self._one_in)])
        self._forked = process
        self._readers = [
            asyncio.create_task(self._hear(process)),
            asyncio.create_task(self._read_log(process)),
        ]
        init = {"type": "init", "node_id": self._name, "node_ids": list(names)}
        async with asyncio.timeout(STARTING_S):
            with suppress(Gone):  # it has ended by itself, which is told by what is done to it next
                while (reply := await self.ask(init))["type"] != "init_ok":
                    self._log.append(str(reply))  # of a store that fails at times
                self._is_up = True

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of its answer. Raises Gone."""
        process = self._forked
        if process is None or process.stdin.is_closing():
            raise Gone
        self._asked += 1
        message = {"src": "c1", "dest": self._name, "body": {**body, "msg_id": self._asked}}
        answer: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[self._asked] = answer
        process.stdin.write(f"{json.dumps(message)}\n".encode())
        return await answer

    async def _hear(self, process: Forked) -> None:
        async for line in process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed in the middle
            body = json.loads(line)["body"]
            answer = self._waiting.pop(body["in_reply_to"])
            if not answer.done():
                answer.set_result(body)
        self._is_up = False
        process.stdin.close()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(Gone())
        self._waiting.clear()

    async def _read_log(self, process: Forked) -> None:
        async for line in process.stderr:
            text = line.decode().rstrip()
            if text in FAULTS:
                self._faults[text] += 1
            else:
                self._log.append(text)

    def signal(self, number: signal.Signals) -> None:
        """Stop it, or let it go on. Raises Violation if it had ended by itself."""
        os.kill(self._alive().pid, number)

    async def kill(self) -> None:
        """Kill it. Raises Violation if it had ended by itself."""
        os.kill(self._alive().pid, signal.SIGKILL)
        await self._ended()

    async def stop(self) -> None:
        """Have it end by the end of stdin. Raises Violation if it had ended by itself, or ends otherwise."""
        self._alive().stdin.close()
        code = await self._ended()
        if code != 0:
            raise Violation(self._told(code))

    async def _ended(self) -> int:
        assert self._forked is not None
        code = await self._forked.ended()
        await asyncio.gather(*self._readers)
        self._forked = None
        return code

    def _alive(self) -> Forked:
        assert self._forked is not None
        code = self._forked.exit_code
        if code is not None:
            raise Violation(self._told(code))
        return self._forked

    def _told(self, code: int) -> str:
        return "\n".join([f"node {self._name} has ended with exit code {code}:", *self._log[-60:]])

    def abandon(self) -> None:
        """Kill it, if it is there: a run that is over has no use for it."""
        if self._forked is not None and self._forked.exit_code is None:
            os.kill(self._forked.pid, signal.SIGKILL)


class Nemesis:
    """What befalls the nodes, each by itself; ``faults`` counts it."""

    def __init__(self, nodes: Sequence[NodeProcess], names: Sequence[str], random: Random) -> None:
        self._free = list(nodes)
        self._names = names
        self._random = random
        self.faults: Counter[str] = Counter()

    async def go_on(self, is_over: Callable[[], bool]) -> None:
        """Until it is over, and all nodes go on then. Raises Violation if one has ended by itself."""
        async with asyncio.TaskGroup() as group:
            while not is_over():
                await asyncio.sleep(self._random.uniform(0.2, 1.2))
                if self._free:
                    node = self._random.choice(self._free)
                    befall = self._random.choice([self._kill, self._pause, self._pause])
                    self._free.remove(node)
                    group.create_task(self._befall(node, befall))

    async def _befall(self, node: NodeProcess, befall: Callable[[NodeProcess], Awaitable[None]]) -> None:
        await befall(node)
        self._free.append(node)

    async def _kill(self, node: NodeProcess) -> None:
        await node.kill()
        self.faults["kill -9"] += 1
        await node.start(self._names)

    async def _pause(self, node: NodeProcess) -> None:
        node.signal(signal.SIGSTOP)
        await asyncio.sleep(self._random.choice([0.05, 0.3, 1.2]))
        self.faults["SIGSTOP"] += 1
        node.signal(signal.SIGCONT)
