"""Messages of a JetStream stream from one of its sequences on: an ephemeral consumer, and one request at a time."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import contextmanager, suppress
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

import nats.errors
import numpy as np
from nats.aio.client import Client
from nats.js import api
from nats.js.errors import APIError, NotFoundError, ServerError, ServiceUnavailableError

from nebuli.ingestion.errors import SourceAway, SourceUnusable

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nats.aio.msg import Msg
    from nats.js import JetStreamContext
    from numpy.typing import NDArray

    from nebuli.ingestion.definition import NatsOrigin

_CONNECT_S = 5
_ANSWER_S = 5.0
_CLOSE_S = 1.0
_BATCH, _BATCH_BYTES = 5_000, 16 << 20
"""The size of one request: as much as waits here for the reader."""
_EXPIRES_S, _HEARTBEAT_S, _SILENT_S = 30.0, 1.5, 5.0
"""For a request without messages.

How long it waits, how often it gets a heartbeat, and when a silent server is gone.
"""
_TURN_S = 0.05
"""How often received messages are passed to their readers."""
_INACTIVE_S = 30.0
"""After so long the server drops the consumer of a reader that is gone."""
_NS = 1_000_000_000
_NOT_ENABLED = (10039, 10076)
_LASTING = ("authorization", "authentication", "invalid connect url")
"""Errors of a connection that no retry can fix."""


class Taken(NamedTuple):
    """A message, at its sequence in the stream."""

    sequence: int
    subject: str
    data: bytes


class NatsPull:
    """A connection that does not reconnect automatically: failures are reported.

    Raises SourceAway and SourceUnusable.
    """

    def __init__(self, origin: NatsOrigin, name: str) -> None:
        self._origin, self._name = origin, name
        self.where = f"stream {origin.stream} at {_place(origin.url)}"
        self._client = Client()
        self._consumer: str | None = None
        self._inbox = ""
        self._said = ""
        self._is_connected = False
        self._waiting: deque[Taken] = deque()
        self._stirred = asyncio.Event()
        self._wanted = self._taken = self._lowest = 0
        self._heard_s = 0.0
        self._failed: str | None = None

    # -- the connection

    async def connect(self) -> None:
        """Reach the server, or raise why not."""
        with self._told():
            async with asyncio.timeout(_CONNECT_S):
                await self._client.connect(
                    self._origin.url,
                    name=f"nebuli {self._name}",
                    error_cb=self._hear_error,
                    closed_cb=self._hear_end,
                    allow_reconnect=False,
                    connect_timeout=_CONNECT_S,
                )
        self._is_connected = True

    async def close(self) -> None:
        """Drop the consumer, and let the connection go."""
        if self._consumer is not None and self._client.is_connected:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await self._stream(_CLOSE_S).delete_consumer(self._origin.stream, self._consumer)
        with suppress(nats.errors.Error, OSError, TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                await self._client.close()

    async def _hear_error(self, error: Exception) -> None:
        self._said = str(error) or type(error).__name__
        if not self._is_connected:  # the client would continue to try
            raise error

    async def _hear_end(self) -> None:
        self._fail(f"the connection is gone: {self._said}" if self._said else "the connection is gone")

    # -- the stream

    def _stream(self, timeout_s: float = _ANSWER_S) -> JetStreamContext:
        return self._client.jetstream(timeout=timeout_s)

    async def info(self) -> api.StreamInfo:
        """Return the settings and the state of the stream."""
        with self._told():
            return await self._stream().stream_info(self._origin.stream)

    async def has(self, sequence: int) -> bool:
        """True if the stream has a message at a sequence."""
        return await self._finds(seq=sequence)

    async def has_from(self, sequence: int) -> bool:
        """True if the stream has a message of the subject at or above a sequence."""
        return await self._finds(seq=sequence, subject=self._origin.subject or ">", next=True)

    async def _finds(self, **which: Any) -> bool:
        with self._told():
            try:
                await self._stream().get_msg(self._origin.stream, **which)
            except NotFoundError:
                return False
        return True

    async def purge(self, before: int) -> None:
        """Have the stream drop what is below a sequence, which is above 1."""
        with self._told():
            await self._stream().purge_stream(self._origin.stream, seq=before)

    # -- messages

    async def start(self, at: int) -> None:
        """Begin with the first message at or above a sequence."""
        with self._told():
            self._inbox = self._client.new_inbox()
            await self._client.subscribe(self._inbox, cb=self._take)
            made = await self._stream().add_consumer(
                self._origin.stream,
                api.ConsumerConfig(
                    deliver_policy=api.DeliverPolicy.BY_START_SEQUENCE,
                    opt_start_seq=at,
                    ack_policy=api.AckPolicy.NONE,
                    filter_subject=self._origin.subject,
                    inactive_threshold=_INACTIVE_S,
                    num_replicas=1,
                    mem_storage=True,
                ),
            )
        self._consumer = made.name

    async def wait(self, within_s: float) -> int:
        """How many messages are here, to be taken: some, or none after a while."""
        loop = asyncio.get_running_loop()
        until = loop.time() + within_s
        while not self._waiting:
            self._stirred.clear()
            if not self._wanted and self._failed is None:
                await self._request()
            silent = self._heard_s + _SILENT_S
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, silent)):
                    await self._stirred.wait()
            if self._failed is not None and not self._waiting:
                raise self._away(self._failed)
            if not self._waiting and loop.time() >= silent:
                await self._listen()
            if loop.time() >= until:
                break
        return len(self._waiting)

    async def _listen(self) -> None:
        """Receive messages that came while this process did something else. Raises SourceAway where that is nothing."""
        before = self._heard_s
        with self._told():
            await self._client.flush(int(_ANSWER_S))
        await asyncio.sleep(_TURN_S)
        if self._heard_s == before:
            raise self._away(f"the server sent nothing for {_SILENT_S:g} s")

    def sequences(self, count: int) -> NDArray[np.int64]:
        """Those of the first messages that are here."""
        return np.fromiter((each.sequence for each in islice(self._waiting, count)), np.int64, count)

    def take(self, count: int) -> list[Taken]:
        """The first ones of those that are here."""
        return [self._waiting.popleft() for _ in range(count)]

    def skip(self, below: int) -> None:
        """Take none below a sequence that comes yet: it was deleted since it was sent."""
        self._lowest = below
        while self._waiting and self._waiting[0].sequence < below:
            self._waiting.popleft()

    async def _request(self) -> None:
        wanted = {
            "batch": _BATCH,
            "max_bytes": max(_BATCH_BYTES, 2 * self._client.max_payload),
            "expires": int(_EXPIRES_S * _NS),
            "idle_heartbeat": int(_HEARTBEAT_S * _NS),
        }
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{self._origin.stream}.{self._consumer}"
        self._heard_s, self._wanted = asyncio.get_running_loop().time(), _BATCH
        with self._told():
            await self._client.publish(subject, json.dumps(wanted).encode(), self._inbox)

    async def _take(self, message: Msg) -> None:
        self._heard_s = asyncio.get_running_loop().time()
        if not message.reply:
            self._hear(message)
            return
        parts = message.reply.split(".")
        # $JS.ACK, from servers that know of domains two more; stream, consumer, deliveries; then the sequences.
        sequence, of_consumer = map(int, parts[5:7] if len(parts) == _SHORT else parts[7:9])
        self._taken += 1
        if of_consumer != self._taken:
            self._fail(f"message {self._taken} of the consumer is lost: {of_consumer} arrived instead")
        if self._failed is None:
            self._wanted -= 1
            if sequence >= self._lowest:
                self._waiting.append(Taken(sequence, message.subject, message.data))
                self._stirred.set()

    def _hear(self, message: Msg) -> None:
        """Handle the server's message about a request."""
        headers = message.headers or {}
        status, description = headers.get(api.Header.STATUS), headers.get(api.Header.DESCRIPTION, "")
        if status == api.StatusCode.CONTROL_MESSAGE:
            return
        is_over = status in (api.StatusCode.NO_MESSAGES, api.StatusCode.REQUEST_TIMEOUT)
        if is_over or description == "Batch Completed":
            self._wanted = 0
            self._stirred.set()
        else:
            self._fail(f"{status} {description}".strip())

    def _fail(self, why: str) -> None:
        if self._failed is None:
            self._failed = why
        self._stirred.set()

    # -- errors

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn the library's errors into ours; and a task that was cancelled meanwhile is cancelled."""
        try:
            yield
        except APIError as error:
            is_away = isinstance(error, ServerError | ServiceUnavailableError)
            if error.err_code in _NOT_ENABLED:
                raise self._unusable("the server has no JetStream; start it with --jetstream") from error
            if is_away:
                raise self._away(
                    error.description or "JetStream gave no reason; was the server started with --jetstream?"
                ) from error
            raise self._unusable(error.description or str(error)) from error
        except (nats.errors.Error, OSError, TimeoutError) as error:
            said = str(error) or type(error).__name__
            if any(each in said.lower() for each in _LASTING):
                raise self._unusable(f"this configuration cannot reach it: {said}") from error
            raise self._away(said) from error
        except ValueError as error:
            raise self._unusable(str(error)) from error
        finally:
            _end_if_cancelled()

    def _away(self, why: str) -> SourceAway:
        return SourceAway(f"{self._name}: {self.where} does not answer: {_one_line(why)}")

    def _unusable(self, why: str) -> SourceUnusable:
        return SourceUnusable(f"{self._name}: {self.where}: {_one_line(why)}")


_SHORT = 9
"""Parts of the subject to which a message is acknowledged, of servers without domains."""


def _end_if_cancelled() -> None:
    """Raise CancelledError if the library has swallowed it, and the task would continue forever.

    It waits for answers by `asyncio.wait_for`, which before Python 3.12 gives an answer that comes in the moment in
    which it is cancelled, and nothing else.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _place(url: str) -> str:
    """Return where a URL leads, without user and password."""
    return urlsplit(url if "://" in url else f"nats://{url}").netloc.rpartition("@")[2]
