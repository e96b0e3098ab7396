"""netchannel, as its users use it: one channel, acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import netchannel
from benchmarks.measuring import pace, watch
from benchmarks.trips import Echoes, Trips
from benchmarks.work import Result, Work
from netchannel.transports.host_memory import SHARED_MEMORY


def congestion_control(work: Work) -> str | None:
    """Ours, or with the option "same_sockets" what the system has for all."""
    return None if work.options.get("same_sockets") else "cubic"


async def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Iterate over a channel until it ends."""
    async with netchannel.ReceiverServer() as receiver:
        return await consumed(work, receiver, lambda: ready(receiver.address))


async def consumed(work: Work, receiver: netchannel.ReceiverServer, ready: Callable[[], None]) -> Result:
    """The same, at a server that is there."""
    inbox = receiver.register_channel("c", codec=work.codec)
    ready()
    watching = watch(work)
    look = watching.look()
    async for message in inbox:
        look(message)
    return watching.result()  # type: ignore[no-any-return]


async def send(work: Work, address: str) -> Result:
    """Await `send` for each, and the end's acknowledgement."""
    shared = 0 if work.options.get("same_sockets") else SHARED_MEMORY
    control = congestion_control(work)
    async with netchannel.SenderServer(congestion_control=control, shared_memory=shared) as sender:
        return await produced(work, sender, address)


async def produced(work: Work, sender: netchannel.SenderServer, address: str) -> Result:
    """The same, by a server that is there."""
    outbox = sender.register_channel("c", to=address, codec=work.codec)
    await outbox.attached()
    pacing = pace(work)
    prepare = _prepared(outbox) if work.options.get("allocated") else _as_they_are
    async for messages in pacing:
        for message in prepare(messages):
            await outbox.send(message)
    await outbox.close()
    return pacing.result()  # type: ignore[no-any-return]


def _as_they_are(messages: list[Any]) -> list[Any]:
    return messages


def _prepared(outbox: netchannel.SenderChannel) -> Callable[[list[Any]], list[Any]]:
    """The same batches in the channel's memory: made anew until that is shared, and then sent again and again."""
    made: list[Any] = []
    shared = False

    def prepared(messages: list[Any]) -> list[Any]:
        nonlocal shared
        if not shared:
            shared = outbox.statistics().shared_bytes > 0
            made[:] = [_in_memory_of(outbox, batch) for batch in messages]
        return made

    return prepared


def _in_memory_of(outbox: netchannel.SenderChannel, batch: pa.RecordBatch) -> pa.RecordBatch:
    memory, columns, start = outbox.allocate(batch.nbytes), [], 0
    for column in batch.columns:
        part = memory[start : start + column.nbytes]
        np.frombuffer(part, np.int64)[:] = column
        columns.append(pa.Array.from_buffers(column.type, len(column), [None, pa.py_buffer(part)]))
        start += column.nbytes
    return pa.record_batch(columns, schema=batch.schema)


async def echo(work: Work, ready: Callable[[str], None]) -> Result:
    """Send back what comes, over a second channel; the first message says where to."""
    echoes = Echoes(work)
    async with netchannel.ReceiverServer() as receiver, netchannel.SenderServer() as sender:
        inbox = receiver.register_channel("there", codec="bytes")
        ready(receiver.address)
        back = bytes(await inbox.recv()).decode()
        outbox = sender.register_channel("back", to=back, codec="bytes")
        async for message in inbox:
            await outbox.send(message)
            echoes.count += 1
        await outbox.close()
    return echoes.result()


async def ask(work: Work, address: str) -> Result:
    """One message there and back, and then the next."""
    async with netchannel.ReceiverServer() as receiver, netchannel.SenderServer() as sender:
        inbox = receiver.register_channel("back", codec="bytes")
        outbox = sender.register_channel("there", to=address, codec="bytes")
        await outbox.send(receiver.address.encode())
        trips = Trips(work)
        message: bytes | None = trips.begin()
        while message is not None:
            await outbox.send(message)
            message = trips.turn(await inbox.recv())
        await outbox.close()
        async for late in inbox:
            raise ValueError(f"an answer too many: {bytes(late)!r}")
    return trips.result()
