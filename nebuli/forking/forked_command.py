"""`ForkedCommand`: a command of `nebuli` as a process of this machine, forked from this process' template."""

from __future__ import annotations

import asyncio
import json
import os
from contextlib import suppress
from typing import TYPE_CHECKING

from nebuli.forking.own_template import own_spawner

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from nebuli.forking.spawner import Spawned

__all__ = ["ForkedCommand"]


class ForkedCommand:
    """A process, its standard error, and its standard input, whose end tells it that this process is gone.

    Its standard output, and its environment, are those of this process.
    """

    def __init__(
        self, process: Spawned, stderr: asyncio.StreamReader, reading: asyncio.BaseTransport, stdin: int
    ) -> None:
        self.process = process
        self.stderr = stderr
        self._reading = reading
        self._stdin = stdin

    @classmethod
    async def start(cls, arguments: Sequence[str], directory: Path) -> ForkedCommand:
        """Start `nebuli` with these arguments, in an absolute directory. Raises OSError if the template is gone.

        `own_spawner` was entered.
        """
        stdin, our_end = os.pipe()
        stderr, their_end = os.pipe()
        reader = asyncio.StreamReader()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stderr, "rb", 0)
        )
        try:
            # In a file: an environment may be larger than a request.
            with os.fdopen(os.memfd_create("environment"), "w+", encoding="ascii") as environment:
                json.dump(dict(os.environ), environment)
                environment.flush()
                process = own_spawner().spawn(
                    their_end,
                    stdin,
                    environment.fileno(),
                    arguments=list(arguments),
                    directory=str(directory),
                )
        except BaseException:
            os.close(our_end)
            reading.close()
            raise
        finally:
            os.close(stdin)
            os.close(their_end)
        return cls(process, reader, reading, our_end)

    async def tell(self, line: str) -> None:
        """Write a line on its standard input; harmless when it has ended."""
        with suppress(BrokenPipeError):
            await asyncio.to_thread(_write, self._stdin, line.encode() + b"\n")

    def close(self) -> None:
        """End its standard input, and with that the process; read nothing of it any more."""
        os.close(self._stdin)
        self._reading.close()


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
