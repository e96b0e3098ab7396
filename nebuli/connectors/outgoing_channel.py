"""A channel to another worker, for a fragment's thread that waits for what the loop does there."""

from __future__ import annotations

import asyncio
from concurrent.futures import CancelledError
from contextlib import suppress
from threading import Lock
from typing import TYPE_CHECKING, Any

import netchannel
from nebuli.connectors.errors import DownstreamLeft, FragmentError, FragmentStopped, InputLost
from nebuli.connectors.policies import sent, tried

if TYPE_CHECKING:
    from collections.abc import Coroutine
    from concurrent.futures import Future

    import pyarrow as pa

    from placement.plan import NetworkSink

__all__ = ["OutgoingChannel"]


class OutgoingChannel:
    """To be made on the loop, used by one thread. ``resumed``: it continues a predecessor's stream."""

    def __init__(
        self, operator: NetworkSink, sender: netchannel.SenderServer, *, resumed: bool = False
    ) -> None:
        self._operator = operator
        self._sender = sender
        self._resumed = resumed
        self._loop = asyncio.get_running_loop()
        self._channel: netchannel.SenderChannel | None = None
        self._lock = Lock()
        self._waiting: Future[Any] | None = None
        self._interrupted = False

    def abort(self, reason: str) -> None:
        """Send the other side the reason why the stream ends here, also before it began: a reader waits for that."""
        if not self._loop.is_closed():
            asyncio.run_coroutine_threadsafe(self._abort(reason), self._loop).result()

    def interrupt(self) -> None:
        """Cancel present and later waits of the fragment."""
        with self._lock:
            self._interrupted = True
            if self._waiting is not None:
                self._waiting.cancel()

    def _wait(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        with self._lock:
            if self._interrupted:
                coroutine.close()
                raise FragmentStopped("stopped")
            self._waiting = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            self._waiting.result()
        except CancelledError:
            raise FragmentStopped("stopped") from None
        except netchannel.ChannelClosedByPeer as error:
            message = f"its reader at {self._operator.address} left: {error.said}"
            raise DownstreamLeft(message, error.said) from error
        except netchannel.PositionLost as error:
            raise InputLost(
                f"its reader at {self._operator.address} has lost the rows that this fragment had "
                f"sent before a restart: both fragments were restarted at the same time"
            ) from error
        except netchannel.NetChannelError as error:
            raise FragmentError(f"channel {self._operator.channel}: {error}") from error

    def _register(self, schema: pa.Schema | None = None) -> None:
        self._channel = self._sender.register_channel(
            self._operator.channel,
            to=self._operator.address,
            schema=schema,
            stream=self._stream,
            replayable=self._resumed,
            buffer=sent(self._operator.buffer, resumed=self._resumed),
            fault=tried(self._operator.fault),
        )

    @property
    def _stream(self) -> str | None:
        """The identity of the stream; None: another one in each life."""
        return None

    async def _abort(self, reason: str) -> None:
        with suppress(netchannel.NetChannelError):  # it has ended in another way: there is no one to notify
            if self._channel is None:
                self._register()
            assert self._channel is not None
            await self._channel.abort(reason)
