"""The node as Maelstrom would see it: a process, and lines of JSON as its documents have them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from nebuli.store import Store
from nebuli.store.errors import StoreFailed, Unclear

from .lists import Lists, TriedInVain
from .node import Code, Node

pytestmark = pytest.mark.processes


class Spoken:
    """A node, spoken to by hand."""

    def __init__(self, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.maelstrom.node", folder],
            cwd=Path(__file__).parents[2],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )

    def ask(self, **body: Any) -> dict[str, Any]:
        """What it answers."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps({"src": "c7", "dest": "n3", "body": body}) + "\n")
        self.process.stdin.flush()
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def end(self) -> int:
        """Its exit code, once there is nothing more to read."""
        self.process.communicate(timeout=30)
        return self.process.returncode


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Spoken]:
    spoken = Spoken(tmp_path / "store")
    yield spoken
    spoken.process.kill()
    spoken.process.communicate()


def test_a_node_speaks_as_maelstrom_wants_it(node: Spoken, tmp_path: Path) -> None:
    early = node.ask(type="txn", msg_id=1, txn=[])
    assert early["body"].items() >= {"type": "error", "code": 11, "in_reply_to": 1}.items()
    init = node.ask(type="init", msg_id=2, node_id="n3", node_ids=["n1", "n2", "n3"])
    assert init == {"src": "n3", "dest": "c7", "body": {"type": "init_ok", "in_reply_to": 2}}
    answer = node.ask(
        type="txn", msg_id=3, txn=[["r", 1, None], ["append", 1, 6], ["append", 2, 9], ["r", 1, None]]
    )
    assert answer == {
        "src": "n3",
        "dest": "c7",
        "body": {
            "type": "txn_ok",
            "in_reply_to": 3,
            "txn": [["r", 1, []], ["append", 1, 6], ["append", 2, 9], ["r", 1, [6]]],
        },
    }
    assert node.ask(type="echo", msg_id=4, echo="?")["body"].items() >= {"code": 10, "in_reply_to": 4}.items()
    wrong = node.ask(type="txn", msg_id=5, txn=[["w", 1, 2]])
    assert wrong["body"].items() >= {"type": "error", "code": 12, "in_reply_to": 5}.items()
    assert "['w', 1, 2] is not an operation" in wrong["body"]["text"]
    other = Spoken(tmp_path / "store")
    other.ask(type="init", msg_id=1, node_id="n1", node_ids=["n1", "n2", "n3"])
    txn = [["r", 1, None], ["r", 2, None], ["r", 3, None]]
    assert other.ask(type="txn", msg_id=2, txn=txn)["body"]["txn"] == [
        ["r", 1, [6]],
        ["r", 2, [9]],
        ["r", 3, []],
    ]
    assert (node.end(), other.end()) == (0, 0)


@pytest.mark.parametrize(
    ("error", "code", "is_definite"),
    [
        (TriedInVain("others were first"), 30, True),
        (StoreFailed("the store", "heads", "the disk"), 11, True),
        (Unclear("the append", "the disk"), 13, False),
    ],
)
async def test_an_error_says_whether_the_transaction_may_have_happened(
    error: Exception, code: int, *, is_definite: bool, tmp_path: Path
) -> None:
    """By Maelstrom's table of errors: 11 and 30 are definite, 13 is not."""

    class Failing(Lists):
        async def transact(self, operations: object) -> tuple[()]:
            raise error

    async with Store.at(tmp_path / "store") as store:
        node = Node(store, Failing)
        init = {"type": "init", "msg_id": 1, "node_id": "n1", "node_ids": ["n1"]}
        await node.answer({"src": "c1", "dest": "n1", "body": init})
        reply = await node.answer(
            {"src": "c1", "dest": "n1", "body": {"type": "txn", "msg_id": 2, "txn": []}}
        )
    assert reply["body"].items() >= {"type": "error", "code": code, "in_reply_to": 2}.items()
    assert Code(reply["body"]["code"]).is_definite == is_definite
