"""A node, as the thread that serves its metrics sees it."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from typing import Any

import pytest

import netchannel
from nebuli.forking.spawner import Spawner
from nebuli.node.data_port import Ports
from nebuli.node.hosted_fragment import Host
from nebuli.node.records import FragmentRecord, Records
from nebuli.node.worker_node import WorkerNode
from nebuli.rpc.status import FragmentState
from nebuli.rpc.trust import NO_TRUST
from nebuli.steps.member.run_notes import COORDINATOR, DISMISSED, PUBLISHED
from placement.plan import BoundSink, Fragment, NetworkSource
from placement.stepped_plan import CoordinatorPlacement
from tests.support.told_members import pushed_query
from topology import Column, NullSink


def a_host(receiver: netchannel.ReceiverServer, state: Path | None = None) -> Host:
    return Host(
        object.__new__(Spawner),  # nothing is started
        receiver,
        netchannel.SenderServer(),
        ports=Ports("127.0.0.1"),
        node="",
        trust=NO_TRUST,
        sockets=Path(),
        max_state_bytes=1,
        state=state,
    )


async def test_its_fragments_can_be_counted_while_they_come_and_go() -> None:
    columns = (Column(name="n", type="int64"),)
    source = NetworkSource(id="in", channel="c", address="127.0.0.1:1", schema=columns)
    sink = BoundSink(id="out", input="in", sink="out", target=NullSink(name="out", type="Null"))
    async with netchannel.ReceiverServer("127.0.0.1:0") as receiver:
        fragment = Fragment(id="f", node=receiver.address, operators=(source, sink))
        count(WorkerNode(a_host(receiver)), fragment)


def count(node: WorkerNode, fragment: Fragment) -> None:
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


async def test_what_was_noted_of_the_run_before_is_gone_before_a_fragment_is_known_to_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill at any moment behind that has the next process go on, which would take such a note for its own run's.

    That it has no checkpoint is known until it runs, and not recorded then: it will not stay so.
    """
    query = pushed_query(1)
    async with netchannel.ReceiverServer("127.0.0.1:0") as receiver:
        fragment = CoordinatorPlacement(
            id="q/coordinator",
            node=receiver.address,
            circuit=query.circuit,
            plan=query.plan,
            external=query.external,
            addresses=(receiver.address,),
            checkpoint_s=1.0,
        )
        host = a_host(receiver, tmp_path)
        with Records(tmp_path) as records:
            node = WorkerNode(host, records)
            id_ = node.register(fragment)
            folder = host.place(id_)
            assert folder is not None
            store = sorted(each.name for each in folder.iterdir())
            for name in (COORDINATOR, DISMISSED, PUBLISHED):
                (folder / name).write_text("of the run before", "utf-8")
            save, there, checkpoints = records.save, [], [each.checkpoint for each in node.statuses()]

            def kept(record: FragmentRecord) -> None:
                if record.status.state is FragmentState.RUNNING:
                    there.append(sorted(each.name for each in folder.iterdir()))
                    checkpoints.append(record.status.checkpoint)
                save(record)

            monkeypatch.setattr(records, "save", kept)
            monkeypatch.setattr(host.spawner, "spawn", no_process, raising=False)
            await node.start(id_)
            assert await node.shutdown(5.0)
            assert there == [store]
            assert checkpoints == [0, None]


def no_process(*kept: int) -> Any:
    raise OSError("nothing is started")
