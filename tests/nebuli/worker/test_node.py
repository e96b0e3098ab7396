"""A node, as the thread that serves its metrics sees it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import netchannel
from nebuli.rpc.trust import NO_TRUST
from nebuli.worker.fragment.spawning import Spawner
from nebuli.worker.hosted import Host
from nebuli.worker.listening import Ports
from nebuli.worker.node import Node
from placement.plan import BoundSink, Fragment, NetworkSource
from topology import Column, NullSink


async def test_its_fragments_can_be_counted_while_they_come_and_go() -> None:
    columns = (Column(name="n", type="int64"),)
    source = NetworkSource(id="in", channel="c", address="127.0.0.1:1", schema=columns)
    sink = BoundSink(id="out", input="in", sink="out", target=NullSink(name="out", type="Null"))
    async with netchannel.ReceiverServer("127.0.0.1:0") as receiver:
        fragment = Fragment(id="f", node=receiver.address, operators=(source, sink))
        host = Host(
            object.__new__(Spawner),  # nothing is started
            receiver,
            netchannel.SenderServer(),
            ports=Ports("127.0.0.1"),
            node="",
            trust=NO_TRUST,
            sockets=Path(),
            max_state_bytes=1,
        )
        count(Node(host), fragment)


def count(node: Node, fragment: Fragment) -> None:
    over = threading.Event()
    errors: list[Exception] = []

    def scrape() -> None:
        while not over.is_set():
            try:
                node.statuses()
            except RuntimeError as error:
                errors.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    thread = threading.Thread(target=scrape)
    thread.start()
    try:
        for _ in range(1000):
            node.register(fragment)
    finally:
        sys.setswitchinterval(before)
        over.set()
        thread.join()
    assert errors == []
