"""Nodes of one process and one event loop, each with the store open for itself: to take safeguards out of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random
from typing import Any

from nebuli.store.ordering import Ordering
from nebuli.store.ordering.sqlite import SqliteOrdering

from .clients import Clients
from .history import Transaction
from .lists import Lists
from .node import Node
from .outages import failing_store

NODES = 3
CLIENTS = 8
_END_S = 10.0
"""How long what clients have asked for may take at the end."""


class NeverAnswered(Exception):
    """A node works on something for ever: it waits for what others do not do."""


class LocalNode:
    """A node without a process of its own."""

    is_up = True

    def __init__(self, node: Node) -> None:
        self._node = node
        self._asked: set[asyncio.Task[dict[str, Any]]] = set()

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of its answer."""
        message = {"src": "c1", "dest": "n", "body": {**body, "msg_id": 1}}
        asked = asyncio.create_task(self._node.answer(message))
        self._asked.add(asked)  # it goes on when its client is out of patience
        asked.add_done_callback(self._asked.discard)
        answer: dict[str, Any] = (await asyncio.shield(asked))["body"]
        return answer

    async def end(self) -> None:
        """Wait until all is answered. Raises NeverAnswered."""
        if not self._asked:
            return
        answered, waiting = await asyncio.wait(self._asked, timeout=_END_S)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        for each in answered:
            each.result()
        if waiting:
            raise NeverAnswered(f"{len(waiting)} questions are not answered within {_END_S:g} s")


async def told(
    seed: int,
    folder: Path,
    transactions: int,
    *,
    lists: type[Lists] = Lists,
    ordering: Callable[[Path], Ordering] = SqliteOrdering,
    one_in: int = 0,
) -> tuple[list[Transaction], Counter[str]]:
    """What clients were told in so many transactions or some more, and which faults there were in the stores.

    Raises NeverAnswered.
    """
    random = Random(seed)
    faults: Counter[str] = Counter()
    async with AsyncExitStack() as stack:
        nodes = []
        for _ in range(NODES):
            store = failing_store(
                folder, random.randrange(1 << 32), one_in, lambda fault: faults.update([fault]), ordering
            )
            nodes.append(LocalNode(Node(await stack.enter_async_context(store), lists)))
        stack.push_async_callback(_end, nodes)
        for number, node in enumerate(nodes):
            await node.ask({"type": "init", "node_id": f"n{number}", "node_ids": []})
        clients = Clients(nodes, random)
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(clients.go_on(lambda: len(clients.history) >= transactions))
        await clients.read_all()
    return clients.history, faults


async def _end(nodes: Sequence[LocalNode]) -> None:
    for ended in await asyncio.gather(*(node.end() for node in nodes), return_exceptions=True):
        if ended is not None:
            raise ended
