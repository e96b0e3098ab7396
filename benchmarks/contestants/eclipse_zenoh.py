"""Zenoh: two peers over TCP, blocking when congested; with ``shared_memory`` as its default has it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import zenoh

from benchmarks.work import END, Pace, Result, Watch, Work


def _config(work: Work, **settings: Any) -> zenoh.Config:
    config = zenoh.Config()
    settings |= {
        "mode": "peer",
        "scouting/multicast/enabled": False,
        "transport/shared_memory/enabled": bool(work.options.get("shared_memory")),
    }
    for key, value in settings.items():
        config.insert_json5(key, json.dumps(value))
    return config


def receive(work: Work, ready: Callable[[str], None]) -> Result:
    """Subscribe until the end's message."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    watch = Watch(work)
    look = watch.look()
    done = threading.Event()
    schema = work.messages()[0].schema if work.arrow else None

    def take(sample: Any) -> None:
        data = sample.payload.to_bytes()
        if len(data) == 1:
            done.set()
        else:
            look(data if schema is None else pa.ipc.read_record_batch(pa.py_buffer(data), schema))

    with zenoh.open(_config(work, **{"listen/endpoints": [f"tcp/{address}"]})) as session:
        session.declare_subscriber("b", take)
        ready(f"tcp/{address}")
        done.wait()
    return watch.result()


def send(work: Work, address: str) -> Result:
    """Publish, reliably and blocking."""
    pace = Pace(work)
    with zenoh.open(_config(work, **{"connect/endpoints": [address]})) as session:
        publisher = session.declare_publisher(
            "b", congestion_control=zenoh.CongestionControl.BLOCK, reliability=zenoh.Reliability.RELIABLE
        )
        matching = threading.Event()
        while not publisher.matching_status.matching:
            matching.wait(0.01)
        for messages in pace.rounds():
            for message in messages:
                publisher.put(message.serialize().to_pybytes() if work.arrow else message)
        publisher.put(END)
    return pace.result()
