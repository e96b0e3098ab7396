"""grpc.aio: one client stream, of bytes without a schema; and calls, each with an answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import grpc
import grpc.aio

from benchmarks.measuring import pace, watch
from benchmarks.trips import DEADLINE_S, Echoes, Throng, Trips
from benchmarks.work import Result, Work

OPTIONS = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]


def _same(data: bytes) -> bytes:
    return data


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Take one stream."""
    watching = watch(work)
    look = watching.look()
    done = asyncio.Event()

    async def take(messages: AsyncIterator[bytes], _: object) -> bytes:
        async for message in messages:
            look(message)
        done.set()
        return b""

    server = grpc.aio.server(options=OPTIONS)
    method = grpc.stream_unary_rpc_method_handler(take, _same, _same)
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("b", {"put": method})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(f"127.0.0.1:{port}")
    await done.wait()
    await server.stop(1)
    return watching.result()  # type: ignore[no-any-return]


async def send(work: Work, address: str) -> Result:
    """Put one stream."""
    pacing = pace(work)

    async def produce() -> AsyncIterator[bytes]:
        async for messages in pacing:
            for message in messages:
                yield message

    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await channel.channel_ready()
        await channel.stream_unary("/b/put", _same, _same)(produce())
    return pacing.result()  # type: ignore[no-any-return]


async def echo(work: Work, ready: Callable[[str], None]) -> Result:
    """Answer with what comes, until that is told to be all."""
    echoes, done = Echoes(work), asyncio.Event()

    async def answer(message: bytes, _: object) -> bytes:
        echoes.count += 1
        return message

    async def end(message: bytes, _: object) -> bytes:
        done.set()
        return message

    server = grpc.aio.server(options=OPTIONS)
    methods = {
        name: grpc.unary_unary_rpc_method_handler(method, _same, _same)
        for name, method in (("echo", answer), ("end", end))
    }
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("b", methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    ready(f"127.0.0.1:{port}")
    await done.wait()
    await server.stop(1)
    return echoes.result()


async def ask(work: Work, address: str) -> Result:
    """One call, and then the next."""
    trips = Trips(work)
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await channel.channel_ready()
        call = channel.unary_unary("/b/echo", _same, _same)
        message: bytes | None = trips.begin()
        while message is not None:
            message = trips.turn(await call(message, timeout=DEADLINE_S))
        await channel.unary_unary("/b/end", _same, _same)(b"")
    return trips.result()


async def ask_at_once(work: Work, address: str) -> Result:
    """Many calls at a time."""
    throng = Throng(work)
    async with grpc.aio.insecure_channel(address, options=OPTIONS) as channel:
        await channel.channel_ready()
        call = channel.unary_unary("/b/echo", _same, _same)
        await throng.run(lambda message: call(message, timeout=DEADLINE_S))
        await channel.unary_unary("/b/end", _same, _same)(b"")
    return throng.result()
