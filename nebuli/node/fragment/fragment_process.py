"""A process that runs one fragment: its servers, its thread, and its reports to the worker."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

import netchannel
from nebuli.connectors.errors import FragmentError
from nebuli.connectors.provider import Provider
from nebuli.connectors.sinks.sink_locks import SinkLock
from nebuli.dataflow.errors import DataflowError
from nebuli.free.runner import FragmentRunner
from nebuli.log_output import PACKAGES
from nebuli.node.data_port import member
from nebuli.node.fragment.conversation import Add, AddEnd, Order, Report, Stop, packed, received
from nebuli.node.fragment.step_process import run_in_steps
from nebuli.node.parts.part_runner import PartRunner
from nebuli.node.records import FRAGMENT
from nebuli.rpc.ids import query_of
from nebuli.rpc.log_lines import LogLine
from placement.plan import Addition, Fragment

if TYPE_CHECKING:
    import socket
    from collections.abc import Sequence

    from nebuli.free.fragment_thread import FragmentThread

__all__ = ["run"]

_REPORT_S = 0.1


def run(control: socket.socket, kept: Sequence[int]) -> int:
    """Do what the worker at the other end of ``control`` orders, to the end of the fragment; the exit code.

    ``kept`` are the descriptors of the locks that the order names.
    """
    try:
        uvloop.run(_run(control, kept))
    except FragmentError as error:  # nothing of it runs: the worker reads here why
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


async def _run(control: socket.socket, kept: Sequence[int]) -> None:
    reader, writer = await asyncio.open_connection(sock=control)
    order = await received(reader)
    if not isinstance(order, Order):  # the worker is gone
        return
    if order.memory_bytes is not None:
        _limit_memory(order.memory_bytes)
    handler = _ToWorker(writer, asyncio.get_running_loop(), order.id)
    for name in PACKAGES:
        logging.getLogger(name).setLevel(logging.INFO)
        logging.getLogger(name).addHandler(handler)
    fragment = FRAGMENT.validate_json(order.fragment)
    if not isinstance(fragment, Fragment):
        await run_in_steps(order, fragment, reader, writer)
        return
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    async with (
        member(order.ports, order.node, order.trust) as receiver,
        netchannel.SenderServer(tls=order.trust.tls, secret=order.trust.secret) as sender,
    ):

        def on_end() -> None:
            loop.call_soon_threadsafe(ended.set)

        runner = (PartRunner if fragment.views else FragmentRunner)(
            order.id,
            fragment,
            on_end,
            resumed=order.resumed,
            max_state_bytes=order.max_state_bytes,
            locks=[SinkLock(*each) for each in zip(order.locks, kept, strict=True)],
        )
        runner.start(Provider(receiver, sender, query_of(order.id)))
        obeying = asyncio.create_task(_obey(reader, writer, runner))

        def report() -> None:
            status = replace(runner.status, pid=os.getpid())
            writer.write(packed(Report(status, sender.statistics(), receiver.statistics())))

        while not ended.is_set():
            report()
            with suppress(TimeoutError):
                async with asyncio.timeout(_REPORT_S):
                    await ended.wait()
        report()
        await writer.drain()
    obeying.cancel()
    writer.close()
    await writer.wait_closed()


def _limit_memory(more_bytes: int) -> None:
    """Memory that libraries have mapped by now, used or not, does not count."""
    pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    limit = pages * resource.getpagesize() + more_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


async def _obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, runner: FragmentThread) -> None:
    while (message := await received(reader)) is not None:
        match message:
            case Stop():
                runner.stop()
            case Add(number, addition):
                assert isinstance(runner, PartRunner), "its worker has looked"
                try:
                    await runner.add(Addition.model_validate_json(addition))
                except (DataflowError, FragmentError) as error:
                    writer.write(packed(AddEnd(number, str(error))))
                else:
                    writer.write(packed(AddEnd(number)))
    os._exit(1)  # the worker is gone: the result will not be requested, and a successor may be there soon


class _ToWorker(logging.Handler):
    """Passes log lines on to the worker, which keeps and shows them."""

    def __init__(self, writer: asyncio.StreamWriter, loop: asyncio.AbstractEventLoop, id_: str) -> None:
        super().__init__(logging.INFO)
        self._writer = writer
        self._loop = loop
        self._id = id_

    def emit(self, record: logging.LogRecord) -> None:
        """Send the record to the worker; called on any thread."""
        line = LogLine.of(record, self._id)
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._writer.write, packed(line))
