"""Every public asynchronous iterator: calls that are cancelled neither end it, nor lose or double an item."""

from __future__ import annotations

import asyncio
import gc
import importlib
import inspect
import pkgutil
import random
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import grpc.aio
import pyarrow as pa
import pytest

import nebuli
import netchannel.aio
from nebuli.circuits.arrow_bytes import encoded
from nebuli.doctor import Fleet, examine
from nebuli.rpc import circuit_pb2 as wire
from nebuli.rpc.circuit_pb2_grpc import CircuitServicer, add_CircuitServicer_to_server
from nebuli.store import Store
from nebuli.views.view_calls import Changed, Description, Watch, bytes_of, question_of, service_of
from netchannel import ReceiverServer, RetainPolicy, SenderServer, resumable
from netchannel.testing.suite import QUICK
from tests.support.ports import free_addresses
from tests.support.waiting import until_async
from topology import parse_topology

PACKAGES = ("netchannel", "nebuli", "placement", "pyspark_netchannel", "spark_bridge", "topology")
FACES = ("netchannel.aio", "nebuli.blocking")
"""The public modules that are not packages."""
COUNT = 12
BIG = 1 << 20
"""Bytes of a message: a range of so many comes in pieces."""


def public_iterators() -> set[str]:
    """What packages list as public and can be iterated asynchronously, or gives what can be."""
    names = [
        each.name
        for package in PACKAGES
        for each in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}.")
        if each.ispkg
    ]
    found = set()
    for module in map(importlib.import_module, (*PACKAGES, *FACES, *names)):
        for thing in (getattr(module, name) for name in getattr(module, "__all__", ())):
            if inspect.isclass(thing):
                found |= {_name(each) for each in _functions_of(thing) if _iterates(each)}
            elif inspect.isfunction(thing) and _iterates(thing):
                found.add(_name(thing))
    return found


def _functions_of(thing: type) -> Iterator[Any]:
    for base in inspect.getmro(thing):
        for name, each in vars(base).items():
            function = getattr(each, "fget", None) or getattr(each, "__func__", each)
            if inspect.isfunction(function) and (not name.startswith("_") or name == "__aiter__"):
                yield function


def _iterates(function: Any) -> bool:
    if hasattr(function, "__wrapped__"):  # a context manager
        return False
    returned = str(function.__annotations__.get("return", ""))
    is_generator = inspect.isasyncgenfunction(function)
    return is_generator or function.__name__ == "__aiter__" or bool(re.search(r"\bAsync(Gen|Iter)", returned))


def _name(function: Any) -> str:
    return f"{function.__module__}.{function.__qualname__}"


@dataclass
class Read:
    """An iterator, how item ``n`` is brought to it, and the numbers that an item has."""

    iterator: AsyncIterator[Any]
    bring: Callable[[int], Awaitable[Any]]
    numbers: Callable[[Any], list[int]]
    expected: list[int]
    ends: bool
    """Whether it ends once all was brought; else it is closed."""


async def _nothing(number: int) -> None:
    """It is there."""


def _body(number: int, size: int = 8) -> bytes:
    return number.to_bytes(8, "big") + bytes(size - 8)


def _number_in(body: Any) -> list[int]:
    return [int.from_bytes(bytes(body[:8]), "big")]


def _read(iterator: AsyncIterator[Any], bring: Any, numbers: Any, *, ends: bool) -> Read:
    return Read(iterator, bring, numbers, list(range(COUNT)), ends)


@asynccontextmanager
async def channel(of: str, path: Path) -> AsyncIterator[Read]:
    async with ReceiverServer("127.0.0.1:0", timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        inbox: Any
        if of == "asyncio":
            inbox, to = receiver.register_channel("c", codec="bytes"), receiver.address
        else:
            processwide = netchannel.aio.receiver_server()
            inbox, to = processwide.register_channel(f"{path.name} {of}", codec="bytes"), processwide.address
        outbox = sender.register_channel(inbox.id, to=to, codec="bytes")

        async def bring(number: int) -> None:
            await outbox.send(_body(number))
            if number == COUNT - 1:
                await outbox.close()

        yield _read(aiter(inbox), bring, _number_in, ends=True)


@asynccontextmanager
async def kept_range(of: str, method: str, path: Path) -> AsyncIterator[Read]:
    async with ReceiverServer("127.0.0.1:0", timing=QUICK) as receiver, SenderServer(timing=QUICK) as sender:
        receiver.retain_channel("c", RetainPolicy(), codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send_many([_body(number, BIG) for number in range(COUNT)])
        await outbox.flush()
        reader: Any = netchannel.ChannelReader(receiver.address, "c", codec="bytes", timing=QUICK)
        if of == "aio":
            reader = netchannel.aio.channel_reader(receiver.address, "c", codec="bytes")
        async with reader:
            await reader.heads(beyond=COUNT - 1)
            if method == "read":
                yield _read(reader.read(0, COUNT), _nothing, _number_in, ends=True)
            else:
                messages = reader.read_messages(0, COUNT)
                yield _read(messages, _nothing, lambda message: _number_in(message.batch), ends=True)


def _rows(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number], pa.int64()), "_weight": pa.array([1], pa.int64())})


class Steps(CircuitServicer):
    """A circuit that has as many steps as it is given."""

    def __init__(self) -> None:
        self.given = 0
        self.news = asyncio.Condition()

    async def bring(self, number: int) -> None:
        async with self.news:
            self.given = number + 1
            self.news.notify_all()

    async def Describe(self, request: Any, context: Any) -> wire.DescribeReply:  # noqa: N802 - gRPC's
        return wire.DescribeReply()

    async def Output(self, request: Any, context: Any) -> AsyncGenerator[wire.OutputPart]:  # noqa: N802 - gRPC's
        for step in range(request.from_step, COUNT):
            async with self.news:
                await self.news.wait_for(lambda step=step: self.given > step)  # type: ignore[misc]
            yield wire.OutputPart(step=step, rows=encoded(_rows(step)), last=True)


@asynccontextmanager
async def circuit(path: Path) -> AsyncIterator[Read]:
    steps, server = Steps(), grpc.aio.server()
    add_CircuitServicer_to_server(steps, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with nebuli.Circuit(f"127.0.0.1:{port}") as circuit:

            def numbers(item: tuple[int, pa.RecordBatch]) -> list[int]:
                assert item[1].to_pylist() == _rows(item[0]).to_pylist()
                return [item[0]]

            yield _read(circuit.output("rows"), steps.bring, numbers, ends=True)
    finally:
        await server.stop(None)


@asynccontextmanager
async def view(method: str, path: Path) -> AsyncIterator[Read]:
    schema = pa.schema([("n", pa.int64())])
    newest, news = -1, asyncio.Condition()

    async def answer(body: bytes) -> bytes:
        question = question_of(body)
        if not isinstance(question, Watch):
            return bytes_of(Description("query", "v", schema.serialize().to_pybytes(), ("n",), False, True))
        async with news:
            await news.wait_for(lambda: newest > question.version)
        rows = pa.record_batch([pa.array([newest], pa.int64())], schema=schema)
        return bytes_of(Changed(newest, rows.serialize().to_pybytes(), step=newest))

    async def bring(number: int) -> None:
        nonlocal newest
        async with news:
            newest = number
            news.notify_all()

    async with ReceiverServer("127.0.0.1:0", timing=QUICK) as receiver:
        receiver.register_service(service_of("v"), answer)
        async with nebuli.Views(receiver.address) as views:
            if method == "watch":
                yield _read(views.watch("v", 0), bring, lambda rows: rows.column(0).to_pylist(), ends=False)
            else:
                yield _read(views.watch_steps("v", 0), bring, lambda item: [item[0]], ends=False)


def _numbers_of_spans() -> Callable[[Any], list[int]]:
    """The rows of spans, each of which begins where the one before ends."""
    upper = None

    def numbers(span: Any) -> list[int]:
        nonlocal upper
        assert upper in (None, span.lower)
        upper = span.upper
        return [number for _, rows in span.updates for number in rows.column("n").to_pylist()]

    return numbers


@asynccontextmanager
async def collection(path: Path) -> AsyncIterator[Read]:
    async with nebuli.Collections(path, tick_s=0.05) as collections:
        await collections.create("c", pa.schema([("n", pa.int64())]))
        at = await collections.latest("c")

        async def bring(number: int) -> None:
            await collections.insert("c", _rows(number))

        yield _read(collections.subscribe("c", at), bring, _numbers_of_spans(), ends=False)


@asynccontextmanager
async def shard(path: Path) -> AsyncIterator[Read]:
    async with Store.at(path) as store:
        opened = await store.create_shard("s", _rows(0).schema)

        async def bring(number: int) -> None:
            await opened.compare_and_append([(number, _rows(number))], number, number + 1)
            if number == COUNT - 1:
                await opened.finish(COUNT)

        yield _read(opened.listen(0), bring, _numbers_of_spans(), ends=True)


@asynccontextmanager
async def doctor(path: Path) -> AsyncIterator[Read]:
    (address,) = free_addresses(1)
    topology = parse_topology(f"nodes: [{{address: '{address}'}}]", "topology.yaml")
    fleet = Fleet(topology, path / "topology.yaml", topology.nodes, [])
    expected = [hash((each.subject, each.name)) for each in [check async for check in examine(fleet)]]
    assert len(expected) > 1
    yield Read(
        examine(fleet), _nothing, lambda check: [hash((check.subject, check.name))], expected, ends=True
    )


CASES: dict[str, Callable[[Path], AbstractAsyncContextManager[Read]]] = {
    "netchannel.servers.receiver_channel.ReceiverChannel.__aiter__": partial(channel, "asyncio"),
    "netchannel.aio.ReceiverChannel.__aiter__": partial(channel, "aio"),
    "netchannel.servers.reader.ChannelReader.read": partial(kept_range, "asyncio", "read"),
    "netchannel.servers.reader.ChannelReader.read_messages": partial(kept_range, "asyncio", "read_messages"),
    "netchannel.aio.ChannelReader.read": partial(kept_range, "aio", "read"),
    "netchannel.aio.ChannelReader.read_messages": partial(kept_range, "aio", "read_messages"),
    "nebuli.circuits.circuit_client.Circuit.output": circuit,
    "nebuli.views.view_client.Views.watch": partial(view, "watch"),
    "nebuli.views.view_client.Views.watch_steps": partial(view, "watch_steps"),
    "nebuli.store.collections.collections.Collections.subscribe": collection,
    "nebuli.store.shards.shard.Shard.listen": shard,
    "nebuli.doctor.examination.examine": doctor,
}


def test_every_public_iterator_is_tried_here() -> None:
    assert public_iterators() == set(CASES)


class _Caller:
    """Calls an iterator, and cancels most of the calls after some turns of the loop, or some time."""

    def __init__(self, iterator: AsyncIterator[Any]) -> None:
        self._iterator = iterator
        self._draw = random.Random(1)
        self.cancelled = 0

    async def next(self) -> Any:
        for wait_s in (*(0.0,) * 5, 0.001, 0.01, 0.1, 1.0, 30.0):
            call = asyncio.ensure_future(anext(self._iterator))
            await self._pass(call, wait_s)
            call.cancel()
            with suppress(asyncio.CancelledError):
                return await call
            self.cancelled += 1
        raise AssertionError("it gives nothing any more")

    async def _pass(self, call: asyncio.Future[Any], wait_s: float) -> None:
        if wait_s:
            await asyncio.wait((call,), timeout=wait_s)
        else:
            for _ in range(self._draw.randrange(10)):
                await asyncio.sleep(0)


@pytest.mark.parametrize("name", CASES)
async def test_a_cancelled_call_does_not_end_it(name: str, tmp_path: Path) -> None:
    """What is brought meanwhile comes once and in order; then it ends for good, or is closed."""
    async with asyncio.timeout(120), CASES[name](tmp_path) as read:
        caller, found, brought = _Caller(read.iterator), list[int](), 0
        while len(found) < len(read.expected):
            bringing = None
            if brought == len(found):  # one at a time: some give only the last of what comes fast
                bringing = asyncio.ensure_future(read.bring(brought))
                brought += 1
            found += read.numbers(await caller.next())
            if bringing is not None:
                await bringing
        assert found == read.expected
        assert caller.cancelled
        if read.ends:
            assert [number async for item in read.iterator for number in read.numbers(item)] == []
        else:
            assert isinstance(read.iterator, AsyncGenerator)
            await read.iterator.aclose()
        for _ in range(2):
            with pytest.raises(StopAsyncIteration):
                await anext(read.iterator)


def _steps() -> set[asyncio.Task[Any]]:
    """The tasks that wait for the next item of an iterator."""
    return {each for each in asyncio.all_tasks() if each.get_coro().cr_code.co_filename == resumable.__file__}  # type: ignore[union-attr]


@pytest.mark.parametrize("name", CASES)
async def test_what_a_cancelled_call_leaves_goes_with_the_iterator(name: str, tmp_path: Path) -> None:
    """It is dropped while it waits, and all tasks that are there for it end."""
    async with asyncio.timeout(120), CASES[name](tmp_path) as read:
        before = _steps()
        call = asyncio.ensure_future(anext(read.iterator))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        call.cancel()
        with suppress(asyncio.CancelledError):
            await call
        del read.iterator
        del call
        gc.collect()

        async def all_ended() -> bool:
            return not _steps() - before

        await until_async(all_ended, "the tasks ended")
