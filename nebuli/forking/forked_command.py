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

    from nebuli.forking.spawner import Spawned, Spawner

__all__ = ["ForkedCommand"]


class ForkedCommand:
    """A process, its standard error, and its standard input, whose end shows it that this process is gone.

    Its standard output, and its environment, are those of this process.
    """

    def __init__(
        self,
        spawner: Spawner,
        process: Spawned,
        stderr: asyncio.StreamReader,
        reading: asyncio.BaseTransport,
        stdin: int,
    ) -> None:
        self.process = process
        self.stderr = stderr
        self._spawner = spawner
        self._reading = reading
        self._stdin = stdin

    @classmethod
    async def start(cls, arguments: Sequence[str], directory: Path) -> ForkedCommand:
        """Start `nebuli` with these arguments, in an absolute directory.

        Where the template has been killed, another one is started, and the process is forked from that. Raises OSError
        if that cannot be reached either.
        """
        spawner = own_spawner()
        try:
            return await cls._from(spawner, arguments, directory)
        except (BrokenPipeError, ConnectionResetError):  # it was killed, which is not noticed yet
            return await cls._from(own_spawner(besides=spawner), arguments, directory)

    @classmethod
    async def _from(cls, spawner: Spawner, arguments: Sequence[str], directory: Path) -> ForkedCommand:
        stdin, our_end = os.pipe()
        stderr, their_end = os.pipe()
        reader = asyncio.StreamReader()
        reading, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(stderr, "rb", 0)
        )
        spawner.enter()
        try:
            # In a file: an environment may be larger than a request.
            with os.fdopen(os.memfd_create("environment"), "w+", encoding="ascii") as environment:
                json.dump(dict(os.environ), environment)
                environment.flush()
                process = spawner.spawn(
                    their_end,
                    stdin,
                    environment.fileno(),
                    arguments=list(arguments),
                    directory=str(directory),
                )
        except BaseException:
            os.close(our_end)
            reading.close()
            spawner.leave()
            raise
        finally:
            os.close(stdin)
            os.close(their_end)
        return cls(spawner, process, reader, reading, our_end)

    async def tell(self, line: str) -> None:
        """Write a line on its standard input; harmless when it has ended."""
        with suppress(BrokenPipeError):
            await asyncio.to_thread(_write, self._stdin, line.encode() + b"\n")

    def close(self) -> None:
        """End its standard input, and with that the process; read nothing of it any more."""
        os.close(self._stdin)
        self._reading.close()
        self._spawner.leave()


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
