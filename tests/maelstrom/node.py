"""``python -m tests.maelstrom.node FOLDER [--seed N --one-in N]``: a node of Maelstrom's, until stdin ends.

A node speaks lines of JSON on stdin and stdout: it is told by ``init`` who it is, and is asked for transactions of the
workload txn-list-append. Its lists are in a store in FOLDER, which all nodes share; they say nothing to each other.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Any

from nebuli.store import StorageError, Store
from nebuli.store.errors import Unclear

from .history import packed, unpacked
from .lists import Lists, TriedInVain
from .outages import failing_store

Message = dict[str, Any]


class Code(IntEnum):
    """Maelstrom's errors. After those that are definite the transaction has not happened."""

    TIMEOUT = 0
    NOT_SUPPORTED = 10
    TEMPORARILY_UNAVAILABLE = 11
    MALFORMED_REQUEST = 12
    CRASH = 13
    TXN_CONFLICT = 30

    @property
    def is_definite(self) -> bool:
        """Whether it is known that nothing has happened."""
        return self not in (Code.TIMEOUT, Code.CRASH)


class Node:
    """Answers messages. Its store is entered by whoever makes it."""

    def __init__(self, store: Store, lists: type[Lists] = Lists) -> None:
        self._store = store
        self._kind = lists
        self._name = "?"
        self._lists: Lists | None = None

    async def answer(self, message: Message) -> Message:
        """The reply."""
        body = message["body"]
        try:
            reply = await self._answer(body)
        except ValueError as error:
            reply = _error(Code.MALFORMED_REQUEST, error)
        except TriedInVain as error:
            reply = _error(Code.TXN_CONFLICT, error)
        except Unclear as error:
            reply = _error(Code.CRASH, error)
        except StorageError as error:
            reply = _error(Code.TEMPORARILY_UNAVAILABLE, error)
        return {"src": self._name, "dest": message["src"], "body": {**reply, "in_reply_to": body["msg_id"]}}

    async def _answer(self, body: Message) -> Message:
        match body["type"]:
            case "init":
                self._name = body["node_id"]
                self._lists = await self._kind.opened(self._store, self._name)
                return {"type": "init_ok"}
            case "txn":
                if self._lists is None:
                    return _error(Code.TEMPORARILY_UNAVAILABLE, "no init has come yet")
                done = await self._lists.transact(unpacked(body["txn"]))
                return {"type": "txn_ok", "txn": packed(done)}
            case other:
                return _error(Code.NOT_SUPPORTED, f"{other} is nothing that lists can do")


def _error(code: Code, text: object) -> Message:
    return {"type": "error", "code": int(code), "text": str(text)}


async def _serve(node: Node) -> None:
    """Answer each line of stdin, several at once; what fails otherwise than nodes may ends the process."""
    lines = asyncio.StreamReader(limit=1 << 24)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), os.fdopen(0, "rb", buffering=0)
    )

    async def answered(message: Message) -> None:
        _say(await node.answer(message))

    async with asyncio.TaskGroup() as group:
        async for line in lines:
            group.create_task(answered(json.loads(line)))


def _say(message: Message) -> None:
    line = f"{json.dumps(message)}\n".encode()
    while line:
        line = line[os.write(1, line) :]


def _log(fault: str) -> None:
    os.write(2, f"{fault}\n".encode())  # at once: several threads may


async def _main(folder: Path, seed: int, one_in: int) -> None:
    async with failing_store(folder, seed, one_in, _log) as store:
        await _serve(Node(store))


def main(arguments: Sequence[str] | None = None) -> None:
    """Be a node, until stdin ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.maelstrom.node", description=__doc__)
    parser.add_argument("folder", type=Path, help="the store's")
    parser.add_argument("--seed", type=int, default=0, help="of what fails in the store")
    parser.add_argument("--one-in", type=int, default=0, help="of so many appends one is unclear; 0: none")
    given = parser.parse_args(arguments)
    asyncio.run(_main(given.folder, given.seed, given.one_in))


if __name__ == "__main__":
    main()
