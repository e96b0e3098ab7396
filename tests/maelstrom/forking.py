"""Nodes forked by a process that has imported all they need: where processors are few, a start would take seconds."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
from asyncio.streams import FlowControlMixin
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess

from . import node

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["tests.maelstrom.node", "tests.maelstrom.run"])
_LINE_BYTES = 1 << 24


@dataclass(frozen=True, slots=True)
class Forked:
    """A node's process, and its pipes."""

    process: ForkServerProcess
    stdin: asyncio.WriteTransport
    stdout: asyncio.StreamReader
    stderr: asyncio.StreamReader

    @property
    def pid(self) -> int:
        """Of its process."""
        assert self.process.pid is not None
        return self.process.pid

    @property
    def exit_code(self) -> int | None:
        """Its exit code, if it has ended; a signal's number below 0."""
        return self.process.exitcode

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        await asyncio.to_thread(self.process.join)
        assert self.process.exitcode is not None
        return self.process.exitcode


async def forked(arguments: Sequence[str]) -> Forked:
    """A node with these arguments."""
    (read_in, write_in), (read_out, write_out), (read_err, write_err) = (
        _CONTEXT.Pipe(duplex=False) for _ in range(3)
    )
    process = _CONTEXT.Process(
        target=_be_a_node, args=(arguments, (read_in, write_out, write_err)), daemon=True
    )
    process.start()
    for each in (read_in, write_out, write_err):
        each.close()
    stdin, _ = await asyncio.get_running_loop().connect_write_pipe(
        FlowControlMixin, os.fdopen(_taken(write_in), "wb", buffering=0)
    )
    return Forked(process, stdin, await _reader(read_out), await _reader(read_err))


def _be_a_node(arguments: Sequence[str], pipes: Sequence[Connection]) -> None:
    """In the forked process: stdin, stdout and stderr are the pipes."""
    for number, pipe in enumerate(pipes):
        os.dup2(pipe.fileno(), number)
        pipe.close()
    node.main(arguments)


async def _reader(connection: Connection) -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=_LINE_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(_taken(connection), "rb", buffering=0)
    )
    return reader


def _taken(connection: Connection) -> int:
    """Its descriptor, which is the caller's now."""
    descriptor = os.dup(connection.fileno())
    connection.close()
    return descriptor
