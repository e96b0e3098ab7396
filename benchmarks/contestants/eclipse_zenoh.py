"""Zenoh: two peers over TCP, blocking when congested; with ``shared_memory`` as its default has it."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

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
    from tests.support.ports import free_addresses

    address = free_addresses(1)[0]
    watch = Watch(work)
    look = watch.look()
    done = threading.Event()

    def take(sample: Any) -> None:
        data = sample.payload.to_bytes()
        if len(data) == 1:
            done.set()
        else:
            look(data)

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
                publisher.put(message)
        publisher.put(END)
    return pace.result()
