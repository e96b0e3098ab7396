"""Clients that ask nodes for transactions, at random, and write down what they were told."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, Protocol

from .history import Append, Operation, Outcome, Read, Transaction, packed, unpacked
from .node import Code

_KEYS = 4
"""Keys that are in use at the same time."""
_APPENDS = 32
"""Of a key; then another one takes its place."""
_OPERATIONS = 4
"""Of a transaction at most."""
PATIENCE_S = 0.4
"""A client waits so long for its answer, and then never learns what it was."""
_FINAL_READS = 50
"""Attempts to read everything at the end."""


class Gone(Exception):
    """The node has ended before it answered."""


class Asked(Protocol):
    """A node, as clients see it."""

    @property
    def is_up(self) -> bool:
        """Whether it has begun, and has not ended, as far as is known."""

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of its answer. Raises Gone."""


class Workload:
    """Draws transactions. Elements of a key are 1, 2, 3..., in the order in which they were drawn."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._keys = list(range(_KEYS))
        self._appended: Counter[int] = Counter()

    def transaction(self) -> tuple[Operation, ...]:
        """The next one."""
        kinds = self._random.choice([(Read,), (Append,), (Read, Append)])
        count = self._random.randint(1, _OPERATIONS)
        return tuple(self._operation(self._random.choice(kinds)) for _ in range(count))

    def _operation(self, kind: type[Operation]) -> Operation:
        place = self._random.randrange(_KEYS)
        key = self._keys[place]
        if kind is Read:
            return Read(key)
        self._appended[key] += 1
        if self._appended[key] == _APPENDS:
            self._keys[place] = max(self._keys) + 1
        return Append(key, self._appended[key])

    def all(self) -> tuple[Operation, ...]:
        """A read of every key that was appended to."""
        return tuple(Read(key) for key in sorted(self._appended))


class Clients:
    """So many as there are, one transaction each at a time; ``history`` is of those that have ended."""

    def __init__(self, nodes: Sequence[Asked], random: Random) -> None:
        self._nodes = nodes
        self._random = random
        self._workload = Workload(random)
        self._count = 0
        self._refusal = ""
        self.history: list[Transaction] = []

    async def go_on(self, is_over: Callable[[], bool]) -> None:
        """One client, until it is over."""
        while not is_over():
            up = [each for each in self._nodes if each.is_up]
            if not up or await self._ask(self._random.choice(up), self._workload.transaction()) == "fail":
                await asyncio.sleep(0.01)  # nothing goes now

    async def read_all(self) -> list[str]:
        """Have each node read everything; what those said that could not."""
        return [
            f"a node could not read {_FINAL_READS} times, and was not disturbed: {self._refusal}"
            for node in self._nodes
            if not await self._has_read_all(node)
        ]

    async def _has_read_all(self, node: Asked) -> bool:
        for _ in range(_FINAL_READS):
            if await self._ask(node, self._workload.all()) == "ok":
                return True
        return False

    async def _ask(self, node: Asked, operations: tuple[Operation, ...]) -> Outcome:
        self._count += 1
        name = f"T{self._count}"
        began = time.monotonic_ns()
        outcome: Outcome = "info"
        try:
            reply = await asyncio.wait_for(node.ask({"type": "txn", "txn": packed(operations)}), PATIENCE_S)
        except (Gone, TimeoutError):
            pass
        else:
            if reply["type"] == "txn_ok":
                outcome, operations = "ok", unpacked(reply["txn"])
            else:
                self._refusal = reply["text"]
                outcome = "fail" if Code(reply["code"]).is_definite else "info"
        ended = None if outcome == "info" else time.monotonic_ns()
        self.history.append(Transaction(name, outcome, began, ended, operations))
        return outcome


__all__ = ["PATIENCE_S", "Asked", "Clients", "Gone", "Workload"]
