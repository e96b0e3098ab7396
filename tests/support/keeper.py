"""A receiver that keeps a channel, and its producers, on a thread of their own: for who reads it by blocking calls."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from contextlib import AsyncExitStack
from threading import Thread
from types import TracebackType
from typing import Any, Self, TypeVar

import pyarrow as pa

from netchannel import FaultPolicy, Heads, ReceiverServer, RetainPolicy, SenderServer, Timing, Tls

T = TypeVar("T")

TIMING = Timing(heartbeat_s=0.2, dead_after_s=2.0, backoff_s=0.02, backoff_limit_s=0.1, leave_s=1.0)


class Keeper:
    """Keeps channel ``c``. A consumer's name is its holder's for ``lease_s`` after that has gone.

    ``directory``: what is kept outlives `restart`. A new stream takes the place of an old one whose producer is gone.
    """

    def __init__(
        self,
        *,
        directory: Any = None,
        codec: Any = "arrow",
        secret: str | None = None,
        tls: Tls | None = None,
        lease_s: float = 0.1,
    ) -> None:
        self._policy = RetainPolicy(directory=directory, lease_s=lease_s)
        self._codec = codec
        self._trust: dict[str, Any] = {"secret": secret, "tls": tls}
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, name="keeper", daemon=True)
        self._receiving = AsyncExitStack()
        self._sending = AsyncExitStack()
        self.address = "127.0.0.1:0"
        self.channel: Any = None
        self._outbox: Any = None

    def __enter__(self) -> Self:
        self._thread.start()
        self.do(self._keep())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.do(self._sending.aclose())
        self.do(self._receiving.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Have the thread do something, and wait for it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _keep(self) -> None:
        server = ReceiverServer(self.address, timing=TIMING, **self._trust)
        await self._receiving.enter_async_context(server)
        self.address = server.address
        self.channel = server.retain_channel(
            "c", self._policy, codec=self._codec, fault=FaultPolicy(accept_new_stream=True)
        )

    def send(self, *batches: Any) -> None:
        """Send messages, in a new stream where there is none; they are kept when this returns."""
        self.do(self._send(batches))

    async def _send(self, batches: tuple[Any, ...]) -> None:
        if self._outbox is None:
            sender = SenderServer(timing=TIMING, **self._trust)
            await self._sending.enter_async_context(sender)
            self._outbox = sender.register_channel("c", self.address, codec=self._codec)
        await self._outbox.send_many(batches)
        await self._outbox.flush()

    def end(self) -> None:
        """End the stream cleanly."""
        self.do(self._outbox.close())
        self._part()

    def abort(self, words: str) -> None:
        """End it as a producer that has failed."""
        self.do(self._outbox.abort(words))
        self._part()

    def leave(self) -> None:
        """Have the producer go without an end, as one that is killed: what is sent next is another stream."""
        self.do(self._outbox.detach())
        self._part()

    def _part(self) -> None:
        self.do(self._sending.aclose())
        self._outbox = None

    def restart(self) -> None:
        """Leave the receiver, and keep the channel with another one at the same address."""
        self.do(self._receiving.aclose())
        self.do(self._keep())

    @property
    def heads(self) -> Heads:
        """How far what is kept goes."""
        return self.channel.latest


def numbers(first: int, count: int) -> pa.RecordBatch:
    """A message with these numbers in a column ``n``."""
    return pa.record_batch({"n": pa.array(range(first, first + count), pa.int64())})
