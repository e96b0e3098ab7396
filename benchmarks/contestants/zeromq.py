"""pyzmq: PUSH and PULL, blocking, which is its fastest. Batches go as IPC messages without their schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zmq

from benchmarks.measuring import pace, watch
from benchmarks.trips import Echoes, Trips
from benchmarks.work import END, Result, Work

COPY_BELOW = 1 << 16  # pyzmq's own default for when copying is cheaper

QUEUE_BYTES, QUEUE_MESSAGES = 8 << 20, 1_000
"""What either side may have in its queue: its default of messages, or fewer if they are large."""
LONG_BYTES, LONG_MESSAGES = 128 << 20, 100_000
"""The same with the option "long_queues"."""


def _high_water(work: Work) -> int:
    long = work.options.get("long_queues")
    size, messages = (LONG_BYTES, LONG_MESSAGES) if long else (QUEUE_BYTES, QUEUE_MESSAGES)
    return max(1, min(messages, size // work.size))


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Pull until the end's message."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        pull.set_hwm(_high_water(work))
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        ready(f"tcp://127.0.0.1:{port}")
        watching = watch(work)
        look = watching.look()
        copy = work.size < COPY_BELOW
        schema = work.messages()[0].schema if work.arrow else None
        recv = pull.recv
        while True:
            message: Any = recv(copy=copy)
            if len(message) == 1:
                return watching.result()  # type: ignore[no-any-return]
            data = message if copy else message.buffer
            look(data if schema is None else pa.ipc.read_record_batch(pa.py_buffer(data), schema))


def send(work: Work, address: str) -> Result:
    """Push, then the end, and wait until the context has flushed both."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.set_hwm(_high_water(work))
        push.setsockopt(zmq.IMMEDIATE, 1)  # so that it is writable once it is connected, and not before
        push.connect(address)
        push.poll(flags=zmq.POLLOUT)
        copy = work.size < COPY_BELOW
        pacing = pace(work)
        for messages in pacing:
            for message in messages:
                push.send(message.serialize() if work.arrow else message, copy=copy, track=False)
        push.send(END)
    return pacing.result()  # type: ignore[no-any-return]


def echo(work: Work, ready: Callable[[str], None]) -> Result:
    """Send back what comes, over a pair of sockets."""
    echoes = Echoes(work)
    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        port = pair.bind_to_random_port("tcp://127.0.0.1")
        ready(f"tcp://127.0.0.1:{port}")
        while (message := pair.recv()) != END:
            pair.send(message)
            echoes.count += 1
    return echoes.result()


def ask(work: Work, address: str) -> Result:
    """One message there and back, and then the next."""
    trips = Trips(work)
    with zmq.Context() as context, context.socket(zmq.PAIR) as pair:
        pair.connect(address)
        message: bytes | None = trips.begin()
        while message is not None:
            pair.send(message)
            message = trips.turn(pair.recv())
        pair.send(END)
    return trips.result()
