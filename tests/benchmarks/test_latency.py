"""Times are counted from when a message was due, and messages are due whatever becomes of those before."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise

import pytest

from benchmarks import latency, trips
from benchmarks.ticks import NANOSECONDS, Ticks
from benchmarks.work import Work, Wrong

RATE = 1_000
WORK = Work(64, rate=RATE, seconds=0.02, warm_up=0.01)


def test_percentiles_are_those_of_the_sorted_values() -> None:
    microseconds = range(1, 1_001)
    found = latency.percentiles(value * 1_000 for value in microseconds)
    assert found["p50_us"] == pytest.approx(500, rel=0.002)
    assert found["p99_us"] == pytest.approx(990, rel=0.002)
    assert found["p99.9_us"] == pytest.approx(999, rel=0.002)


def test_messages_are_due_at_the_rate_and_numbered() -> None:
    heads = [latency.HEAD.unpack_from(message) for messages in latency.Pace(WORK) for message in messages]
    numbers, due_ns = zip(*heads, strict=True)
    assert numbers == tuple(range(30))
    assert {after - before for before, after in pairwise(due_ns)} == {NANOSECONDS // RATE}


def test_none_is_sent_before_it_is_due() -> None:
    for messages in latency.Pace(WORK):
        now = time.monotonic_ns()
        assert all(latency.HEAD.unpack_from(message)[1] <= now for message in messages)


def test_a_sender_that_is_held_up_sends_what_was_due_meanwhile() -> None:
    pace = iter(latency.Pace(WORK))
    next(pace)
    time.sleep(5.5 / RATE)  # the subject: a stall
    assert len(next(pace)) >= 5


def test_coroutines_are_woken_as_blocking_code_is() -> None:
    async def collect() -> int:
        pace = latency.Pace(WORK)
        return sum([len(messages) async for messages in pace])

    assert asyncio.run(collect()) == 30


def test_a_tick_is_not_lost_while_nobody_waits() -> None:
    with Ticks(time.monotonic_ns(), NANOSECONDS // RATE) as ticks:
        time.sleep(5.5 / RATE)  # the subject: a stall
        assert ticks.wait() >= 5


def test_the_time_is_counted_from_when_a_message_was_due() -> None:
    watch = latency.Watch(Work(64, rate=RATE, warm_up=0))
    look = watch.look()
    late_ns = 5_000_000
    begin = time.monotonic_ns() - late_ns
    for number in range(2):
        look(latency.HEAD.pack(number, begin) + bytes(48))
    assert watch.result().measures["p50_us"] >= late_ns / 1e3


def test_a_number_that_is_not_due_is_seen() -> None:
    look = latency.Watch(WORK).look()
    look(latency.HEAD.pack(0, 0))
    with pytest.raises(Wrong, match="message 2 came where 1 was due"):
        look(latency.HEAD.pack(2, 0))


def test_a_stream_of_several_has_every_so_many_numbers() -> None:
    look = latency.Watch(WORK).look(1, 7)
    look(latency.HEAD.pack(1, 0))
    look(latency.HEAD.pack(8, 0))
    with pytest.raises(Wrong, match="message 9 came where 15 was due"):
        look(latency.HEAD.pack(9, 0))


def test_another_answer_than_the_question_is_seen() -> None:
    asking = trips.Trips(Work(64))
    question = asking.begin()
    assert asking.turn(question) is not None
    with pytest.raises(Wrong, match="the answer to message 1"):
        asking.turn(question)
