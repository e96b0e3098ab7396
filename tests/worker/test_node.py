"""A node, as the thread that serves its metrics sees it."""

from __future__ import annotations

import sys
import threading

import netchannel
from nebuli.worker.hosted import Host
from nebuli.worker.node import Node
from nebuli.worker.spawning import Spawner
from nebuli.worker.trust import NO_TRUST
from placement.plan import BoundSink, Fragment, NetworkSource
from topology import Column, NullSink


async def test_its_fragments_can_be_counted_while_they_come_and_go() -> None:
    columns = (Column(name="n", type="int64"),)
    source = NetworkSource(id="in", channel="c", address="127.0.0.1:1", schema=columns)
    sink = BoundSink(id="out", input="in", sink="out", target=NullSink(name="out", type="Null"))
    fragment = Fragment(id="f", node="127.0.0.1:1", operators=(source, sink))
    host = Host(
        object.__new__(Spawner),  # nothing is started
        netchannel.ReceiverServer(),
        netchannel.SenderServer(),
        listen="127.0.0.1:0",
        node="",
        trust=NO_TRUST,
        max_state_bytes=1,
    )
    node = Node(host)
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
