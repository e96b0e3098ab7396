"""What two members of a circuit, each a process, take to exchange nothing, and to exchange much.

One listens at an address of the system's choice, and chooses one for the other, who is told both.
"""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from statistics import median

import numpy as np
import pyarrow as pa

from benchmarks.work import Result, Work
from nebuli.dataflow import Received, Sending, SteppedCircuit
from nebuli.steps.member.exchange import Exchange
from netchannel import ReceiverServer, SenderServer

from .circuits import plan_of, rows_of
from .percentiles import percentiles

OPEN_S = 30.0
WARM_UP = 200
EPOCH = 1
BUFFER_BYTES = 1 << 20
ROW_BYTES = 40
Ready = Callable[[str], None]


@asynccontextmanager
async def _first(ready: Ready) -> AsyncIterator[Exchange]:
    """Of member 0."""
    async with ReceiverServer("127.0.0.1:0") as receiver, SenderServer() as sender:
        addresses = [receiver.address, _free_address()]
        ready(" ".join(addresses))
        exchange = Exchange(sender, receiver, "circuit", EPOCH, 0, addresses, buffer_bytes=BUFFER_BYTES)
        await exchange.open(OPEN_S)
        yield exchange
        await exchange.close()


@asynccontextmanager
async def _second(told: str) -> AsyncIterator[Exchange]:
    """Of member 1."""
    addresses = told.split()
    async with ReceiverServer(addresses[1]) as receiver, SenderServer() as sender:
        exchange = Exchange(sender, receiver, "circuit", EPOCH, 1, addresses, buffer_bytes=BUFFER_BYTES)
        await exchange.open(OPEN_S)
        yield exchange
        await exchange.close()


def _free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as found:
        return f"127.0.0.1:{found.getsockname()[1]}"


# -- steps in which nothing is exchanged


async def first_exchanges(work: Work, ready: Ready) -> Result:
    """Member 0's side of `second_exchanges`."""
    async with _first(ready) as exchange:
        await _exchange_times(exchange, work)
    return Result(work.options["steps"])


async def second_exchanges(work: Work, told: str) -> Result:
    """Steps of so many exchanges each, of Z-sets without rows."""
    async with _second(told) as exchange:
        times = await _exchange_times(exchange, work)
    return Result(work.options["steps"], percentiles(times[WARM_UP:]))


async def _exchange_times(exchange: Exchange, work: Work) -> Sequence[float]:
    nothing: list[pa.RecordBatch | None] = [rows_of("left", np.arange(0))] * 2
    times = []
    for step in range(WARM_UP + work.options["steps"]):
        began = time.perf_counter()
        for index in range(work.options["exchanges"]):
            await exchange.all_to_all(step, index, nothing)
        times.append(time.perf_counter() - began)
    return times


async def first_steps(work: Work, ready: Ready) -> Result:
    """Member 0's side of `second_steps`."""
    async with _first(ready) as exchange:
        await _steps(exchange, 0, work)
    return Result(work.options["steps"])


async def second_steps(work: Work, told: str) -> Result:
    """Steps of a circuit, with whatever exchanges it has, that is given no rows."""
    async with _second(told) as exchange:
        times = await _steps(exchange, 1, work)
    return Result(work.options["steps"], percentiles(times[WARM_UP:]))


async def _steps(exchange: Exchange, member: int, work: Work) -> Sequence[float]:
    circuit = SteppedCircuit(plan_of(work.options["query"], 2), member)
    times = []
    for number in range(WARM_UP + work.options["steps"]):
        began = time.perf_counter()
        await _stepped(circuit, exchange, number)
        times.append(time.perf_counter() - began)
    return times


async def _stepped(circuit: SteppedCircuit, exchange: Exchange, number: int) -> None:
    work = circuit.step({})
    answer: Received | None = None
    while True:
        try:
            asked = work.send(answer)
        except StopIteration:
            return
        answer = None
        if isinstance(asked, Sending):
            came = await exchange.all_to_all(number, asked.index, asked.parts, asked.senders, asked.receivers)
            answer = [asked.parts[0].slice(0, 0) if part is None else part for part in came]


# -- steps in which much is


async def first_large(work: Work, ready: Ready) -> Result:
    """Member 0's side of `second_large`."""
    rows = _many_rows(work)
    async with _first(ready) as exchange:
        measures = await _large(exchange, 0, rows, work.options["steps"])
    return Result(1, {"receiver_peak_MB": measures["peak_MB"]})


async def second_large(work: Work, told: str) -> Result:
    """Each sends the other so many bytes in one exchange of a step, with buffers of 1 MiB."""
    rows = _many_rows(work)
    async with _second(told) as exchange:
        measures = await _large(exchange, 1, rows, work.options["steps"])
    return Result(1, {**measures, "sender_peak_MB": measures["peak_MB"]})


def _many_rows(work: Work) -> pa.RecordBatch:
    return rows_of("left", np.arange(work.options["bytes"] // ROW_BYTES))


async def _large(exchange: Exchange, member: int, rows: pa.RecordBatch, steps: int) -> dict[str, float]:
    """How fast it is the first time, with memory that is new to the process, and then.

    ``peak_MB``: by how much more memory was held than before the first step, when the part that is sent was there.
    """
    parts: list[pa.RecordBatch | None] = [None, None]
    parts[1 - member] = rows
    nothing: list[pa.RecordBatch | None] = [None, None]
    before = _peak_mb()
    times = []
    for step in range(1 + steps):
        await exchange.all_to_all(step, 0, nothing)
        began = time.perf_counter()
        came = await exchange.all_to_all(step, 1, parts)
        times.append(time.perf_counter() - began)
        part = came.pop(1 - member)
        assert part is not None
        assert part.equals(rows)
        del part
    rates = [rows.nbytes / took / 1e9 for took in times]
    return {"GB_per_s": median(rates[1:]), "new_GB_per_s": rates[0], "peak_MB": _peak_mb() - before}


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6
