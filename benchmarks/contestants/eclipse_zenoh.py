"""Zenoh: two peers over TCP, blocking when congested; with "shared_memory", messages that lie there already.

There only references go over TCP, which holds so many of them that nothing blocks: so the subscriber tells the
publisher how far it is.
"""

from __future__ import annotations

import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import zenoh
import zenoh.shm

from benchmarks.measuring import pace, watch
from benchmarks.work import END, Result, Work

ENVELOPE_BYTES = 1 << 10
"""What Arrow's format takes beside a batch, at most."""
LARGER = {"transport/link/rx/buffer_size": 1 << 20, "transport/link/tx/queue/size": {"data": 16}}
"""Of what is read at once, and of batches that wait: 64 KiB and 2 are its own."""
WINDOW, TELLS_EACH = 32, 4
"""How many messages in shared memory may be on the way, and after how many the subscriber says how far it is."""


@contextmanager
def _session(work: Work, **settings: Any) -> Iterator[zenoh.Session]:
    config = zenoh.Config()
    settings |= {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": bool(work.options.get("shared_memory")),
    }
    if work.options.get("larger_buffers"):
        settings |= LARGER
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    with zenoh.open(config) as session:
        yield session


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Subscribe until the end's message."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"tcp/127.0.0.1:{free.getsockname()[1]}"
    watching = watch(work)
    look = watching.look()
    done = threading.Event()
    schema = work.messages()[0].schema if work.arrow else None
    shared = bool(work.options.get("shared_memory"))
    wrong = []
    count = 0

    def take(sample: Any) -> None:
        nonlocal count
        data = sample.payload.to_bytes()
        try:
            if len(data) == 1:
                done.set()
                return
            look(data if schema is None else pa.ipc.read_record_batch(pa.py_buffer(data), schema))
        except Exception as error:  # noqa: BLE001 - zenoh would log it and go on: whoever waits is to hear of it
            wrong.append(error)
            done.set()
        if shared:
            assert sample.payload.as_shm() is not None, "the message did not come through shared memory"
            count += 1
            if count % TELLS_EACH == 0:
                taken.put(b"")

    with _session(work, **{"listen/endpoints": [address]}) as session:
        taken = session.declare_publisher("taken", congestion_control=zenoh.CongestionControl.BLOCK)
        session.declare_subscriber("b", take)
        ready(address)
        done.wait()
    if wrong:
        raise wrong[0]
    return watching.result()  # type: ignore[no-any-return]


def send(work: Work, address: str) -> Result:
    """Publish, reliably and blocking."""
    with _session(work, **{"connect/endpoints": [address]}) as session:
        publisher = session.declare_publisher(
            "b", congestion_control=zenoh.CongestionControl.BLOCK, reliability=zenoh.Reliability.RELIABLE
        )
        matching = threading.Event()
        while not publisher.matching_status.matching:  # type: ignore[attr-defined] # stubs lag
            matching.wait(0.01)
        if work.options.get("shared_memory"):
            provider = zenoh.shm.ShmProvider.default_backend(2 * work.pattern * (work.size + ENVELOPE_BYTES))
            put = _shared(work, session, publisher, provider)
        else:
            put = _put(work, publisher)
        pacing = pace(work)
        for messages in pacing:
            for message in messages:
                put(message)
        publisher.put(END)
    return pacing.result()  # type: ignore[no-any-return]


def _body(message: Any) -> bytes:
    return message if isinstance(message, bytes) else message.serialize().to_pybytes()


def _put(work: Work, publisher: zenoh.Publisher) -> Callable[[Any], None]:
    return (lambda batch: publisher.put(_body(batch))) if work.arrow else publisher.put


def _shared(
    work: Work, session: zenoh.Session, publisher: zenoh.Publisher, provider: zenoh.shm.ShmProvider
) -> Callable[[Any], None]:
    """Put what was written to shared memory before, again and again; without its provider it would be gone."""
    payloads = []
    for message in work.messages():
        body = _body(message)
        memory = provider.alloc(len(body))
        memory[0 : len(body)] = body
        payloads.append(zenoh.ZBytes(memory))
    in_turn = itertools.cycle(payloads)
    room = threading.Semaphore(WINDOW)
    session.declare_subscriber("taken", lambda _: room.release(TELLS_EACH))

    def put(_: Any) -> None:
        room.acquire()
        publisher.put(next(in_turn))

    return put
