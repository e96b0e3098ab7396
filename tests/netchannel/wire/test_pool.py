"""Memory that is used again, and never while anybody can see it."""

from __future__ import annotations

import asyncio
from random import Random

import pyarrow as pa
import pytest

from netchannel import BufferPolicy, ReceiverServer, SenderServer
from netchannel.wire import pool
from netchannel.wire.pool import LARGEST, POOL_BYTES, SMALLEST, Pool


def test_what_is_held_stays_what_it_was() -> None:
    """Views, slices, casts, Arrow buffers and arrays hold their memory, in any order of taking and letting go."""
    random, memory = Random(5), Pool()
    held: list[tuple[object, bytes]] = []
    for number in range(4000):
        size = random.choice([SMALLEST, 10_000, 70_000, 300_000])
        view = memory.take(size)
        assert len(view) == size
        stamp = number.to_bytes(8, "little")
        view[:8] = view[-8:] = stamp
        kept = random.choice(
            [
                lambda view=view: view,
                lambda view=view: view[:8].toreadonly(),
                lambda view=view: pa.py_buffer(view[-8:]),
                lambda view=view: pa.Array.from_buffers(pa.uint8(), 8, [None, pa.py_buffer(view)]),
                lambda: None,
            ]
        )()
        if kept is not None:
            held.append((kept, stamp))
        del view, kept
        while len(held) > random.randrange(1, 60):
            del held[random.randrange(len(held))]
        for each, expected in held[-40:]:
            assert seen(each) == expected


def seen(kept: object) -> bytes:
    if isinstance(kept, pa.Array):
        kept = kept.buffers()[1]
    data = bytes(memoryview(kept))  # type: ignore[arg-type]
    assert data[:8] == data[-8:]
    return data[:8]


def test_free_memory_is_used_again_and_the_rest_is_bounded() -> None:
    """One message after the other needs one buffer; a pool keeps so much and no more, whatever the sizes."""
    memory = Pool()
    addresses = {pa.py_buffer(memory.take(1 << 20)).address for _ in range(100)}
    assert len(addresses) == 1
    held = [memory.take(1 << 20) for _ in range(100)]
    assert memory._bytes <= POOL_BYTES
    del held
    for size in range(SMALLEST, LARGEST, 1 << 19):
        memory.take(size)
    assert memory._bytes <= POOL_BYTES


@pytest.mark.parametrize("size", [2000, 1 << 16, 1 << 20, 3 << 20])
async def test_every_message_of_a_run_can_be_held(size: int) -> None:
    """CH-ARW-4: all are what was sent, when the last has come."""
    count = (32 << 20) // size

    def body(number: int) -> bytes:
        return number.to_bytes(4, "little") * (size // 4)

    async with ReceiverServer() as receiver, SenderServer() as sender:
        inbox = receiver.register_channel("c", codec="bytes", buffer=BufferPolicy(max_bytes=4 << 20))
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")

        async def produce() -> None:
            for number in range(count):
                await outbox.send(body(number))
            await outbox.close()

        producing = asyncio.create_task(produce())
        held = {number: await inbox.recv() for number in range(count // 4)}
        for number in range(0, count // 4, 2):
            del held[number]  # what was let go is used again, beside what is held
        number = count // 4
        async for message in inbox:
            held[number] = message
            number += 1
        await producing
        assert number == count
        assert [each for each, message in held.items() if message != body(each)] == []


async def test_without_the_count_of_references_messages_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A negative control."""
    monkeypatch.setattr(pool.sys, "getrefcount", lambda _: pool._UNUSED)
    with pytest.raises(AssertionError):
        test_what_is_held_stays_what_it_was()
