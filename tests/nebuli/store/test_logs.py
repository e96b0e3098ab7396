"""The logs of a member, as the source document has them (rows DBSP-IN and DBSP-OUT)."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli.dataflow.zset import digest, weighted
from nebuli.steps.logs import input_log
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.output_log import Dating, OutputLog, time_row
from nebuli.store import Store
from nebuli.store.errors import (
    LogTaken,
    OutputDiffers,
    SchemaMismatch,
    SequenceGap,
    SequenceReused,
    SinceMismatch,
    StepOutOfRange,
    StoreFull,
)
from tests.support.stores import SCHEMA, Place, Plan, by_time, listened, only_here, store_at, weights, zset

_WIND = weighted(pa.schema([("speed", pa.float64())]))
_HANDLES = {"flights": SCHEMA, "wind": _WIND}


def wind(speed: float, weight: int = 1) -> pa.RecordBatch:
    return pa.record_batch([[speed], [weight]], schema=_WIND)


@pytest.fixture
async def log(store: Store) -> AsyncIterator[InputLog]:
    async with await InputLog.open(store, "member 0", _HANDLES) as opened:
        yield opened


async def push(log: InputLog, *rows: tuple[int, int], producer: str = "p") -> None:
    await log.push("flights", zset(*rows), producer=producer, sequence=log.next_sequence(producer))


async def read(log: InputLog, step: int) -> dict[int, int]:
    """The flights of a step."""
    found = await log.read(step, asyncio.Event())
    assert found is not None
    assert {handle: rows.schema for handle, rows in found.items()} == _HANDLES
    return weights([found["flights"]])


async def reopened(log: InputLog, store: Store) -> InputLog:
    await log.__aexit__(None, None, None)
    opened = await InputLog.open(store, "member 0", _HANDLES)
    return await opened.__aenter__()


async def test_steps_have_numbers_without_gaps(log: InputLog) -> None:
    """DBSP-IN-1."""
    for step in range(5):
        assert (log.first, log.last) == (0, step)
        await push(log, (step, 1))
        assert await read(log, step) == {step: 1}
    assert [await read(log, step) for step in range(5)] == [{step: 1} for step in range(5)]


async def test_a_new_log_has_no_steps(log: InputLog) -> None:
    """DBSP-IN-5."""
    assert log.first == log.last == 0


async def test_only_steps_that_are_there_and_the_next_can_be_read(log: InputLog) -> None:
    """DBSP-IN-6."""
    for step in range(4):
        await log.fix(step)
    await log.trim(2)
    for step in (1, 5, 100):
        for call in (log.read(step, asyncio.Event()), log.fix(step)):
            with pytest.raises(
                StepOutOfRange, match=f"step {step} of input log member 0 .* from 2, .* next .*is 4"
            ) as raised:
                await call
            assert (raised.value.asked, raised.value.first, raised.value.last) == (step, 2, 4)
    for step in (2, 3):
        assert await read(log, step) == {}


async def test_the_next_step_waits_until_something_arrives(
    log: InputLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DBSP-IN-7: at once, and not by looking now and then."""
    monkeypatch.setattr("nebuli.store.shards.access._FALLBACK_S", 1000.0)
    reading = asyncio.create_task(log.read(0, asyncio.Event()))
    await asyncio.sleep(0.05)
    assert not reading.done()
    assert log.last == 0
    await log.push("wind", wind(3.5), producer="p", sequence=0)
    found = await asyncio.wait_for(reading, 60)
    assert found is not None
    assert found["wind"].to_pylist() == [{"speed": 3.5, "_weight": 1}]


async def test_each_handle_has_its_z_set(log: InputLog) -> None:
    """DBSP-IN-8."""
    await push(log, (1, 1))
    found = await log.read(0, asyncio.Event())
    assert found is not None
    assert (found["wind"].schema, found["wind"].num_rows) == (_WIND, 0)
    await log.push("wind", wind(1.0), producer="p", sequence=1)
    found = await log.read(1, asyncio.Event())
    assert found is not None
    assert (found["flights"].schema, found["flights"].num_rows) == (SCHEMA, 0)


async def test_what_arrives_several_times_is_added(log: InputLog) -> None:
    """DBSP-IN-9."""
    await push(log, (1, 1), (2, 1))
    await push(log, (1, -1), (2, 1), producer="q")
    await push(log, (3, 1))
    assert await read(log, 0) == {2: 2, 3: 1}


async def test_a_step_is_the_same_whenever_it_is_read(log: InputLog, store: Store, place: Place) -> None:
    """DBSP-IN-10."""
    for n in range(5):
        await push(log, (n, 1), (n + 1, 2))
    first = await log.fix(0)
    await push(log, (9, 1))
    digests = {handle: digest(rows) for handle, rows in first.items()}
    for again in range(3):
        if again:
            log = await reopened(log, store)
        found = await log.read(0, asyncio.Event())
        assert found == first
        assert {handle: digest(rows) for handle, rows in found.items()} == digests
    await log.trim(0)
    shard = await store.open_shard("member 0/input/flights")
    await shard.compact(full=True)
    async with store_at(place) as later:
        again_log = await InputLog.open(later, "member 0", _HANDLES)
        assert await again_log.fix(0) == first
    await log.__aexit__(None, None, None)


@pytest.mark.timed
async def test_a_read_that_is_cancelled_fixes_nothing_and_disturbs_no_later_one(log: InputLog) -> None:
    """DBSP-IN-11."""
    took = []
    for _ in range(3):  # a busy machine takes its time from some of them
        cancelled = asyncio.Event()
        reading = asyncio.create_task(log.read(0, cancelled))
        await asyncio.sleep(0.01)
        cancelled.set()
        began = time.monotonic()
        assert await reading is None
        took.append(time.monotonic() - began)
        assert log.last == 0
    assert min(took) < 0.05
    await push(log, (1, 1))
    assert await log.read(0, cancelled) is None  # that token stays cancelled, and what arrived is not lost
    assert await read(log, 0) == {1: 1}
    assert (await log.read(0, cancelled) or {})[
        "flights"
    ].num_rows == 1  # what was fixed can be read all the same


async def test_a_step_can_be_fixed_without_input(log: InputLog) -> None:
    """A member that has nothing takes the steps of the others."""
    assert {handle: rows.num_rows for handle, rows in (await log.fix(0)).items()} == {"flights": 0, "wind": 0}
    await push(log, (1, 1))
    assert await log.waiting() == {"flights": 1, "wind": 0}
    assert await read(log, 1) == {1: 1}
    assert await log.offsets(0) == {"flights": (0, 0), "wind": (0, 0)}
    assert await log.offsets(1) == {"flights": (0, 1), "wind": (0, 0)}


async def test_a_log_without_handles_has_steps_too(store: Store) -> None:
    async with await InputLog.open(store, "member 1", {}) as log:
        for step in range(2):
            assert await log.fix(step) == {}
        assert await log.offsets(1) == {}
        cancelled = asyncio.Event()
        asyncio.get_running_loop().call_later(0.01, cancelled.set)
        assert await log.read(2, cancelled) is None


_MEMBER = """
import asyncio
import os
import signal
import sys
from nebuli.store import Store
from nebuli.steps.logs.input_log import InputLog
from tests.support.stores import SCHEMA, zset

async def live(folder, rows):
    async with Store.at(folder) as store, await InputLog.open(store, "m", {"in": SCHEMA}) as log:
        for row in rows:
            await log.push("in", zset((row, 1)), producer="p", sequence=log.next_sequence("p"))
        print(log.last, flush=True)
        if log.last == 5:
            await log.fix(5)
            print("fixed", flush=True)
        elif log.last == 0:
            for step in range(5):
                await log.fix(step)
        os.kill(os.getpid(), signal.SIGKILL)

asyncio.run(live(sys.argv[1], map(int, sys.argv[2:])))
"""


@pytest.mark.processes
@only_here
async def test_nothing_is_added_to_a_step_after_a_crash(place: Place, folder: Path) -> None:
    """DBSP-IN-2, DBSP-IN-3: three rows count for step 5, then two more arrive, each time with a kill -9."""
    lives = [((), "0\n"), ((1, 2, 3), "5\nfixed\n"), ((4, 5), "6\n")]
    for rows, said in lives:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _MEMBER, str(folder), *map(str, rows), stdout=subprocess.PIPE
        )
        output, _ = await process.communicate()
        assert (output.decode(), process.returncode) == (said, -signal.SIGKILL)
    async with store_at(place) as store, await InputLog.open(store, "m", {"in": SCHEMA}) as log:
        found = [await log.fix(step) for step in range(log.last + 1)]
        assert [weights([each["in"]]) for each in found] == [*[{}] * 5, {1: 1, 2: 1, 3: 1}, {4: 1, 5: 1}]


async def test_a_log_is_trimmed_below_the_older_version_and_never_above(log: InputLog, store: Store) -> None:
    """DBSP-IN-4."""
    states = store.state_store("member 0")
    step = 0
    for version in range(4):
        async with await states.open(version) as database:
            await log.trim(database.get_step())
            assert log.first == database.get_step() == max(0, 3 * version)
            for _ in range(3):
                await push(log, (step, 1))
                assert await read(log, step) == {step: 1}
                step += 1
            database.set_step(step)
            await database.commit()
        await log.trim(3 * version)  # the older version's step
        for older in await states.versions():  # from either version all can be done again
            assert [await read(log, at) for at in range(3 * older, step)] == [
                {at: 1} for at in range(3 * older, step)
            ]
    with pytest.raises(StepOutOfRange):
        await log.trim(step + 1)
    with pytest.raises(StepOutOfRange):
        await log.trim(8)
    for name in ("member 0/input/flights", "member 0/remap"):
        shard = await store.open_shard(name)
        await shard.compact()
        assert shard.since == 9
        assert sum(part.rows for part in shard._tracked.state.parts) <= 6  # of twelve steps
    await log.trim(step)
    log = await reopened(log, store)
    assert (log.first, log.last) == (12, 12)
    await push(log, (99, 1))
    assert await read(log, 12) == {99: 1}
    await log.__aexit__(None, None, None)


# -- producers


async def test_what_is_sent_again_has_no_effect(log: InputLog, store: Store) -> None:
    for again in range(3):
        if again == 2:
            log = await reopened(log, store)
        assert log.next_sequence("p") == (2 if again else 0)
        await log.push("flights", zset((1, 1), (2, 1)), producer="p", sequence=0)
        await log.push("wind", wind(1.0), producer="p", sequence=1)
        await log.push("flights", zset((2, 1), (1, 1)), producer="p", sequence=0)  # the same rows
        await log.push("flights", zset((7, 1)), producer="q", sequence=0)
    assert await read(log, 0) == {1: 1, 2: 1, 7: 1}
    await log.__aexit__(None, None, None)


async def test_what_is_sent_again_before_it_is_logged_waits_with_the_first(log: InputLog) -> None:
    sending = [
        asyncio.create_task(log.push("flights", zset((n, 1)), producer="p", sequence=n))
        for n in range(5)
        for _ in "ab"
    ]
    await asyncio.gather(*sending)
    assert await read(log, 0) == dict.fromkeys(range(5), 1)


async def test_a_gap_and_a_number_used_twice_are_errors(log: InputLog, store: Store) -> None:
    await push(log, (1, 1))
    for again in range(2):
        if again:
            log = await reopened(log, store)
        with pytest.raises(SequenceGap, match="producer p sent its number 2, but its next is 1") as raised:
            await log.push("flights", zset((1, 1)), producer="p", sequence=2)
        assert (raised.value.expected, raised.value.got) == (1, 2)
        for handle, rows in (("flights", zset((1, 2))), ("flights", zset((2, 1))), ("wind", wind(1.0))):
            with pytest.raises(
                SequenceReused, match=r"number . was already kept with different content"
            ) as reused:
                await log.push(handle, rows, producer="p", sequence=0)
            assert (reused.value.expected, reused.value.got) == (1, 0)
        with pytest.raises(SchemaMismatch):
            await log.push("flights", wind(1.0), producer="p", sequence=1)
    await push(log, (2, 1))
    assert await read(log, 0) == {1: 1, 2: 1}
    await log.__aexit__(None, None, None)


async def test_of_the_last_numbers_it_is_known_what_they_were_for(
    log: InputLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_log, "_REMEMBERED", 4)
    for n in range(10):
        await push(log, (n, 1))
    log = await reopened(log, store)
    known = await store.open_shard("member 0/producers")
    assert (await known.snapshot(known.upper - 1)).num_rows == 4
    for n in range(10):
        if n >= 6:
            with pytest.raises(SequenceReused):
                await log.push("flights", zset((100, 1)), producer="p", sequence=n)
        else:
            await log.push(
                "flights", zset((100, 1)), producer="p", sequence=n
            )  # acknowledged by its number alone
    assert await read(log, 0) == dict.fromkeys(range(10), 1)
    await log.__aexit__(None, None, None)


async def test_pushes_at_the_same_time_share_appends(log: InputLog, store: Store) -> None:
    sending = [push_of(log, f"p{n % 10}", n // 10) for n in range(500)]
    await asyncio.gather(*sending)
    known = await store.open_shard("member 0/producers")
    assert known.upper < 50
    assert await read(log, 0) == dict.fromkeys(range(500), 1)


def push_of(log: InputLog, producer: str, sequence: int) -> asyncio.Task[None]:
    row = 10 * sequence + int(producer[1:])
    return asyncio.create_task(log.push("flights", zset((row, 1)), producer=producer, sequence=sequence))


async def test_what_could_not_be_logged_can_be_sent_again(place: Place) -> None:
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", {"in": SCHEMA}) as log:
        await log.push("in", zset((0, 1)), producer="p", sequence=0)
        plan.before = lambda _: StoreFull("the store", "the disk is full")
        plan.at = len(plan.calls)
        sending = [
            asyncio.create_task(log.push("in", zset((n, 1)), producer="p", sequence=n)) for n in (1, 2)
        ]
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert all(isinstance(each, StoreFull) for each in results)
        assert log.next_sequence("p") == 1
        for n in (1, 2):
            await log.push("in", zset((n, 1)), producer="p", sequence=n)
        assert weights([(await log.fix(0))["in"]]) == {0: 1, 1: 1, 2: 1}


async def test_whoever_lost_the_log_is_told(log: InputLog, other: Store) -> None:
    await push(log, (1, 1))
    async with await InputLog.open(other, "member 0", _HANDLES) as theirs:
        await push(theirs, (2, 1), producer="q")
        await theirs.fix(0)
        with pytest.raises(LogTaken, match="another member appends to input log member 0"):
            await push(log, (3, 1))
        with pytest.raises(LogTaken):
            await push(log, (3, 1))
        assert await read(theirs, 0) == {1: 1, 2: 1}


# -- output


@pytest.fixture
async def output(store: Store) -> OutputLog:
    return await OutputLog.open(store, "member 0", {"delays": SCHEMA, "wind": _WIND})


async def test_the_next_step_is_appended(output: OutputLog, other: Store) -> None:
    """DBSP-OUT-5."""
    for step in range(3):
        assert output.last == step
        await output.write(step, {"delays": zset((step, 1))})
    theirs = await OutputLog.open(other, "member 0", {"delays": SCHEMA, "wind": _WIND})
    assert (theirs.first, theirs.last) == (0, 3)
    assert weights([await theirs.read("delays", 1)]) == {1: 1}
    assert (await theirs.read("wind", 1)).schema == _WIND
    shard = await other.open_shard("member 0/output/delays")
    assert by_time(await listened(shard, 1, 3)) == {1: {1: 1}, 2: {2: 1}}


async def test_a_step_beyond_the_next_is_an_error(output: OutputLog) -> None:
    """DBSP-OUT-6."""
    with pytest.raises(StepOutOfRange, match="needs the steps below it first") as raised:
        await output.write(1, {"delays": zset((1, 1))})
    assert (raised.value.asked, raised.value.last) == (1, 0)
    assert output.last == 0


async def test_a_step_that_comes_out_the_same_is_dropped_and_another_is_an_error(output: OutputLog) -> None:
    """DBSP-OUT-4."""
    await output.write(0, {"delays": zset((1, 1), (2, 2))})
    await output.write(0, {"delays": zset((2, 1), (1, 1), (2, 1)), "wind": wind(1.0).slice(0, 0)})
    with pytest.raises(
        OutputDiffers,
        match="step 0 was repeated, and its rows in delays, wind differ from the rows in output log member 0",
    ):
        await output.write(0, {"delays": zset((1, 1), (2, 3)), "wind": wind(1.0)})
    assert weights([await output.read("delays", 0)]) == {1: 1, 2: 2}
    assert (await output.read("wind", 0)).num_rows == 0
    assert output.last == 1


async def test_steps_have_times_as_long_as_a_sink_may_need_them(store: Store, other: Store) -> None:
    """Those that are asked for, in whatever pieces they are stored; some steps have none of their own."""
    dating = Dating("step time", ("delays", "wind"))
    schemas = {"delays": SCHEMA, "wind": _WIND}
    output = await OutputLog.open(store, "m", schemas, dating=dating)
    for step, at in enumerate([100, None, 120, 130, None, 150]):
        await output.write(step, {"delays": zset((step, 1)), "step time": time_row(at)})
    theirs = await OutputLog.open(other, "m", schemas, dating=dating)
    for log in (output, theirs):
        assert await log.times(0, 3) == {0: 100, 2: 120}
        assert await log.times(3, 6) == {3: 130, 5: 150}
    await output.has_delivered("wind", 0)
    await output.has_delivered("delays", 5)
    await output.trim(4)
    assert await output.times(0, 6) == {0: 100, 2: 120, 3: 130, 5: 150}, (
        "the sink of the other has had nothing"
    )
    await output.has_delivered("wind", 3)
    await output.has_delivered("delays", 5)
    assert await output.times(3, 6) == {3: 130, 5: 150}
    with pytest.raises(SinceMismatch):
        await output.times(2, 6)


async def test_it_need_not_be_compared(store: Store) -> None:
    """DBSP-OUT-4: optionally."""
    output = await OutputLog.open(store, "m", {"out": SCHEMA}, compares=False)
    await output.write(0, {"out": zset((1, 1))})
    await output.write(0, {"out": zset((2, 1))})
    assert weights([await output.read("out", 0)]) == {1: 1}


async def test_trimming_moves_the_first_step_and_what_is_below_is_dropped(output: OutputLog) -> None:
    """DBSP-OUT-2, DBSP-OUT-3."""
    for step in range(6):
        await output.write(step, {"delays": zset((step, 1))})
    await output.trim(4)
    assert (output.first, output.last) == (4, 6)
    await output.write(3, {"delays": zset((99, 1))})
    assert (output.first, output.last) == (4, 6)
    with pytest.raises(SinceMismatch):
        await output.read("delays", 3)
    assert weights([await output.read("delays", 4)]) == {4: 1}
    await output.trim(2)
    await output.trim(100)
    assert (output.first, output.last) == (6, 6)
    await output.write(6, {"delays": zset((6, 1))})
    assert weights([await output.read("delays", 6)]) == {6: 1}


async def test_output_that_was_lost_is_produced_again_from_the_older_version(store: Store) -> None:
    """DBSP-OUT-1: a circuit that sums, its database, its input; its output is written anew from the older version."""

    async def run(output: OutputLog, log: InputLog, version: int, until: int) -> None:
        async with await store.state_store("m").open(version) as database:
            kept = await database.get("sum", b"")
            total = int(kept.to_pybytes()) if kept is not None else 0
            for step in range(database.get_step(), until):
                found = await log.fix(step)
                total += sum(n * weight for n, weight in weights([found["in"]]).items())
                await output.write(step, {"out": zset((total, 1))})
            database.set_step(until)
            await database.put("sum", b"", b"%d" % total)
            await database.commit()

    async with await InputLog.open(store, "m", {"in": SCHEMA}) as log:
        output = await OutputLog.open(store, "m", {"out": SCHEMA})
        for until in (2, 4, 6):
            for n in (until, until + 1):
                await log.push("in", zset((n, 1)), producer="p", sequence=log.next_sequence("p"))
            await run(output, log, until // 2 - 1, until)
        assert list(await store.state_store("m").versions()) == [2, 3]
        again = await OutputLog.open(store, "another", {"out": SCHEMA})
        for step in range(4):  # those that the older version does not need are as they were
            await again.write(step, {"out": await output.read("out", step)})
        await run(again, log, 2, 6)
        for step in range(6):
            assert await again.read("out", step) == await output.read("out", step)


async def test_a_log_continues_with_what_another_has_in_pieces_that_may_begin_later(
    output: OutputLog,
) -> None:
    """What was forgotten between two pieces is forgotten here, too, and is not a step without rows."""
    await output.continue_with("delays", 2, 4, [(2, zset((2, 1))), (3, zset((3, 1)))])
    await output.continue_with("delays", 3, 4, [])
    assert (output.first_of("delays"), weights([await output.read("delays", 2)])) == (2, {2: 1})
    await output.continue_with("delays", 6, 8, [(6, zset((6, 1))), (7, zset((7, 1)))])
    assert output.first_of("delays") == 6
    with pytest.raises(SinceMismatch):
        await output.read("delays", 5)
    assert weights([await output.read("delays", 7)]) == {7: 1}


async def test_whoever_follows_hears_each_step_once(output: OutputLog, other: Store) -> None:
    theirs = await OutputLog.open(other, "member 0", {"delays": SCHEMA, "wind": _WIND})
    heard = theirs.follow("delays", 0)
    for step in range(5):
        await output.write(step, {"delays": zset((step, 1))})
        await output.write(step, {"delays": zset((step, 1))})
        span = await asyncio.wait_for(anext(heard), 60)
        assert (span.lower, span.upper) == (step, step + 1)
        assert weights([rows for _, rows in span.updates]) == {step: 1}
    await heard.aclose()  # type: ignore[attr-defined]


async def test_whoever_writes_a_step_first_has_written_it(output: OutputLog, other: Store) -> None:
    theirs = await OutputLog.open(other, "member 0", {"delays": SCHEMA, "wind": _WIND})
    await theirs.write(0, {"delays": zset((1, 1))})
    with pytest.raises(LogTaken):
        await output.write(0, {"delays": zset((2, 1))})
    assert weights([await output.read("delays", 0)]) == {1: 1}
