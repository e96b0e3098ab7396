"""pyzmq: PUSH and PULL, blocking, which is its fastest. Batches go as IPC messages without their schema."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zmq

from benchmarks.work import END, Pace, Result, Watch, Work

COPY_BELOW = 1 << 16  # pyzmq's own default for when copying is cheaper


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Pull until the end's message."""
    with zmq.Context() as context, context.socket(zmq.PULL) as pull:
        port = pull.bind_to_random_port("tcp://127.0.0.1")
        ready(f"tcp://127.0.0.1:{port}")
        watch = Watch(work)
        look = watch.look()
        copy = work.size < COPY_BELOW
        schema = work.messages()[0].schema if work.arrow else None
        recv = pull.recv
        while True:
            message: Any = recv(copy=copy)
            if len(message) == 1:
                return watch.result()
            data = message if copy else message.buffer
            look(data if schema is None else pa.ipc.read_record_batch(pa.py_buffer(data), schema))


def send(work: Work, address: str) -> Result:
    """Push, then the end, and wait until the context has flushed both."""
    pace = Pace(work)
    with zmq.Context() as context, context.socket(zmq.PUSH) as push:
        push.connect(address)
        copy = work.size < COPY_BELOW
        for messages in pace.rounds():
            for message in messages:
                push.send(message.serialize() if work.arrow else message, copy=copy)
        push.send(END)
    return pace.result()
