"""Sources outside, with messages that come one after the other, each once, however often they are killed meanwhile."""

from __future__ import annotations

import asyncio
import json
from abc import ABC, abstractmethod
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import nats
import nats.errors
import pyarrow as pa
import pyarrow.parquet as pq
from nats.aio.client import Client

import netchannel
from nebuli.ingestion.source_status import SourceStatus
from tests.support.nats import NatsServer
from tests.support.ports import free_addresses
from tests.support.starter import Forked, start_program

Rows = Counter[tuple[Any, ...]]
Contents = dict[Any, tuple[Any, ...]]


class Feed(ABC):
    """Message after message, by their numbers from 0 on."""

    pause_s = 0.01
    """Between two messages, on an average."""
    definition = ""
    """Of the source, but for its name."""

    async def begin(self) -> None:  # noqa: B027 - most have nothing to do
        """Whatever has to be before the first message."""

    @abstractmethod
    async def put(self, number: int) -> None:
        """Have the source have a message, which is there once when this returns."""

    async def end(self) -> None:  # noqa: B027 - most have nothing to do
        """All that was put is there."""

    async def close(self) -> None:  # noqa: B027 - most have nothing to do
        """Let go of everything."""

    @abstractmethod
    def expected(self, count: int) -> Rows:
        """What so many messages come to."""

    @abstractmethod
    async def is_let_go(self, found: SourceStatus) -> bool:
        """Whether the source keeps no more of what is ingested than it needs to."""

    def check_changes(self, changes: dict[int, Rows]) -> None:  # noqa: B027 - most have nothing to do
        """What holds of changes at times."""

    def kill(self) -> bool:
        """Kill whoever has the messages; False where nobody does."""
        return False

    async def start(self) -> None:  # noqa: B027 - most have nothing to do
        """And have him back."""


# -- files


class CsvFeed(Feed):
    """Two files, to which lines are added, in pieces."""

    def __init__(self, folder: Path, _: int) -> None:
        self._paths = [folder / "orders-0.csv", folder / "orders-1.csv"]
        self.definition = (
            f"from: {{type: File, path: {folder}/orders-*.csv}}\nformat: CSV\n"
            "schema: [{name: n, type: int64}, {name: said, type: string}]"
        )

    async def put(self, number: int) -> None:
        path = self._paths[number % 2]
        line = f'{number},"it said ""{number}""\n{number * 7}"\r\n'
        if not path.exists():
            line = f"n,said\r\n{line}"
        cut = number * 7919 % len(line)
        for part in (line[:cut], line[cut:]):
            with path.open("a", newline="", encoding="utf-8") as file:
                file.write(part)
            await asyncio.sleep(0)

    def expected(self, count: int) -> Rows:
        return Counter((n, f'it said "{n}"\n{n * 7}') for n in range(count))

    async def is_let_go(self, found: SourceStatus) -> bool:
        return found.raw_sources["data"].addresses == {str(each): each.stat().st_size for each in self._paths}


class JsonFeed(Feed):
    """A file with rows that take the place of one another."""

    def __init__(self, folder: Path, seed: int) -> None:
        self._path, self._seed = folder / "orders.jsonl", seed
        self.definition = (
            f"from: {{type: File, path: {self._path}}}\nformat: JSON\n"
            "envelope: {type: upsert, key: [k], deleted: gone}\n"
            "schema: [{name: k, type: int64}, {name: n, type: int64}]"
        )

    def _message(self, number: int) -> tuple[int, bool]:
        random = Random(f"{self._seed} {number}")
        return random.randrange(30), random.random() < 0.3

    async def begin(self) -> None:
        self._path.touch()

    async def put(self, number: int) -> None:
        key, gone = self._message(number)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps({'k': key, 'n': number, 'gone': gone})}\n")

    def expected(self, count: int) -> Rows:
        contents: Contents = {}
        for number in range(count):
            key, gone = self._message(number)
            contents.pop(key, None)
            if not gone:
                contents[key] = (key, number)
        return Counter(contents.values())

    async def is_let_go(self, found: SourceStatus) -> bool:
        return found.raw_sources["data"].addresses == {str(self._path): self._path.stat().st_size}


class ParquetFeed(Feed):
    """Files, each of which is there at once."""

    pause_s = 0.05

    def __init__(self, folder: Path, _: int) -> None:
        self._folder = folder
        self.definition = (
            f"from: {{type: Parquet, path: {folder}/*.parquet}}\nschema: [{{name: n, type: int64}}]"
        )

    def _rows(self, number: int) -> range:
        return range(number * 100, number * 100 + number % 5)

    async def put(self, number: int) -> None:
        path = self._folder / f"{number:05}.new"
        pq.write_table(pa.table({"n": pa.array(self._rows(number), pa.int64())}), path, row_group_size=2)
        path.rename(path.with_suffix(".parquet"))

    def expected(self, count: int) -> Rows:
        return Counter((n,) for number in range(count) for n in self._rows(number))

    async def is_let_go(self, found: SourceStatus) -> bool:
        there = {str(each): int(each.stem) % 5 for each in self._folder.glob("*.parquet")}
        return found.raw_sources["data"].addresses == {path: rows for path, rows in there.items() if rows}


# -- channels

_KEEP = """
import asyncio, sys, netchannel

async def main():
    async with netchannel.ReceiverServer(sys.argv[1]) as receiver:
        receiver.retain_channel("c", netchannel.RetainPolicy(directory=sys.argv[2]))
        print("kept", flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
_TIMING = netchannel.Timing(heartbeat_s=0.2, dead_after_s=5.0, backoff_s=0.02, backoff_limit_s=0.2)


class ChannelFeed(Feed):
    """A channel that a process keeps on disk, and one stream that this one sends."""

    def __init__(self, folder: Path, _: int) -> None:
        self._folder = folder / "kept"
        (self._address,) = free_addresses(1)
        self.definition = (
            f"from: {{type: Channel, address: {self._address}, channel: c, consumer: it}}\n"
            "schema: [{name: n, type: int64}]"
        )
        self._keeper: Forked | None = None
        self._sender = netchannel.SenderServer(timing=_TIMING)
        self._outbox: Any = None

    async def begin(self) -> None:
        await self.start()
        await self._sender.__aenter__()
        self._outbox = self._sender.register_channel("c", self._address)

    async def put(self, number: int) -> None:
        rows = pa.array([number] * (number % 4), pa.int64())
        await self._outbox.send(pa.record_batch({"n": rows}))

    async def end(self) -> None:
        await self._outbox.flush()

    async def close(self) -> None:
        if self._outbox is not None:
            await self._outbox.abort("the test is over")
            await self._sender.__aexit__(None, None, None)
        self.kill()

    def expected(self, count: int) -> Rows:
        return Counter({(number,): number % 4 for number in range(count) if number % 4})

    async def is_let_go(self, found: SourceStatus) -> bool:
        async with netchannel.ChannelReader(self._address, "c") as reader:
            heads = await reader.heads()
        return heads.head > 0 and heads.oldest == heads.head

    def kill(self) -> bool:
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.kill()
            keeper.wait(60)
            keeper.stdout.close()
        return True

    async def start(self) -> None:
        self._keeper = start_program(_KEEP, self._address, self._folder)
        assert await asyncio.to_thread(self._keeper.stdout.readline) == b"kept\n"


# -- NATS


class NatsFeed(Feed):
    """A stream of which is purged what is ingested; a message that comes twice is known by its id."""

    def __init__(self, server: NatsServer) -> None:
        self._server = server
        self._client: Client | None = None
        self.definition = (
            f"from: {{type: NATS, url: '{server.url}', stream: orders, purge: true}}\nformat: JSON\n"
            "schema: [{name: n, type: int64}]"
        )

    async def _connected(self) -> Client:
        if self._client is None:
            client = Client()
            await client.connect(
                self._server.url,
                error_cb=_raise,
                allow_reconnect=False,
                connect_timeout=5,
            )
            self._client = client
        return self._client

    async def begin(self) -> None:
        await (await self._connected()).jetstream().add_stream(name="orders", subjects=["orders.>"])

    async def put(self, number: int) -> None:
        while True:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                stream = (await self._connected()).jetstream()
                await stream.publish(
                    "orders.a",
                    json.dumps({"n": number}).encode(),
                    timeout=2,
                    headers={"Nats-Msg-Id": str(number)},
                )
                return
            await self.close()
            await asyncio.sleep(0.02)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            with suppress(nats.errors.Error, OSError, TimeoutError):
                await client.close()

    def expected(self, count: int) -> Rows:
        return Counter((number,) for number in range(count))

    async def is_let_go(self, found: SourceStatus) -> bool:
        state = (await (await self._connected()).jetstream().stream_info("orders")).state
        return state.last_seq > 0 and state.messages <= 1

    def kill(self) -> bool:
        self._server.kill()
        return True

    async def start(self) -> None:
        await asyncio.to_thread(self._server.start)


async def _raise(error: Exception) -> None:
    """The client would go on to try."""
    if isinstance(error, OSError):
        raise error
