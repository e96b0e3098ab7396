"""What members of a circuit in lockstep ask of their input log: positions, steps passed over, the end of all inputs."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from nebuli.steps.logs import input_log
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.remap import Address, Passage
from nebuli.store import Store
from nebuli.store.errors import LogTaken, SequenceReused, StepOutOfRange, StoreFailed, StoreFull, Unclear
from nebuli.store.shards.ledger import _PAUSES_S
from tests.support.seeds import drawn_seed
from tests.support.sizes import examples, some
from tests.support.starter import start_program
from tests.support.stores import SCHEMA, Place, Plan, store_at, weights, zset

_HANDLES = {"a": SCHEMA, "b": SCHEMA}


@pytest.fixture
async def log(store: Store) -> AsyncIterator[InputLog]:
    async with await InputLog.open(store, "m", _HANDLES) as opened:
        yield opened


async def push(log: InputLog, *rows: int, handle: str = "a", producer: str = "p") -> None:
    await log.push(
        handle, zset(*((n, 1) for n in rows)), producer=producer, sequence=log.next_sequence(producer)
    )


def numbers(found: dict[str, pa.RecordBatch]) -> dict[int, int]:
    """The rows of all handles."""
    return weights(found.values())


async def reopened(log: InputLog, store: Store) -> InputLog:
    await log.__aexit__(None, None, None)
    opened = await InputLog.open(store, "m", _HANDLES)
    return await opened.__aenter__()


# -- positions


async def test_a_position_is_how_many_rows_of_a_producer_are_durable(log: InputLog, store: Store) -> None:
    assert log.position("p") == 0
    await push(log, 1, 2, 3)
    await push(log, 4, handle="b")
    await push(log, 5, 6, producer="q")
    await push(log)
    for again in range(2):
        if again:
            log = await reopened(log, store)
        await log.push("a", zset((1, 1), (2, 1), (3, 1)), producer="p", sequence=0)  # sent again
        with pytest.raises(SequenceReused):
            await log.push("a", zset((1, 1)), producer="p", sequence=0)
        assert [log.position(each) for each in "pqr"] == [4, 2, 0]
    await push(log, 7, 7)
    assert log.position("p") == 6
    await log.__aexit__(None, None, None)


async def test_a_row_counts_as_one_whatever_its_weight_is(log: InputLog) -> None:
    await log.push("a", zset((1, 5), (2, -3)), producer="p", sequence=0)
    assert (log.position("p"), log.waiting_rows()) == (2, 2)


async def test_positions_stay_when_numbers_are_forgotten(
    log: InputLog, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(input_log, "_REMEMBERED", 4)
    for n in range(10):
        await push(log, *range(n))
        await log.fix(n)
        await log.trim(n)
    log = await reopened(log, store)
    assert log.position("p") == 45
    await push(log, 1)
    assert log.position("p") == 46
    await asyncio.gather(*(log.push("a", zset((n, 1)), producer="q", sequence=n) for n in range(10)))
    assert log.position("q") == 10  # more at once than are remembered
    log = await reopened(log, store)
    assert (log.position("p"), log.position("q")) == (46, 10)
    await log.__aexit__(None, None, None)


async def test_what_is_on_its_way_is_neither_in_the_position_nor_waiting(log: InputLog) -> None:
    sending = asyncio.create_task(push(log, 1, 2))
    await asyncio.sleep(0)
    assert log.next_sequence("p") == 1
    assert (log.position("p"), log.waiting_rows()) == (0, 0)
    await sending
    assert (log.position("p"), log.waiting_rows()) == (2, 2)


async def test_what_could_not_be_logged_is_in_no_position(place: Place) -> None:
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        await push(log, 1)
        plan.before, plan.at = lambda _: StoreFull("the store", "the disk is full"), len(plan.calls)
        with pytest.raises(StoreFull):
            await push(log, 2, 3)
        assert (log.position("p"), log.waiting_rows()) == (1, 1)
        await push(log, 2, 3)
        assert (log.position("p"), log.waiting_rows()) == (3, 3)
        assert numbers(await log.fix(0)) == {1: 1, 2: 1, 3: 1}
        assert log.waiting_rows() == 0


async def test_who_pushes_while_another_push_fails_can_send_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        count, sending = log._count, []

        async def counting() -> None:
            sending.append(asyncio.create_task(push(log, 2)))
            await count()

        monkeypatch.setattr(log, "_count", counting)
        plan.before, plan.at = lambda _: StoreFull("the store", "the disk is full"), len(plan.calls)
        sending.append(asyncio.create_task(push(log, 1)))
        await asyncio.wait(sending)
        assert len(await asyncio.gather(*sending, return_exceptions=True)) == 2
        assert all(isinstance(each.exception(), StoreFull) for each in sending)
        assert log.next_sequence("p") == 0
        await push(log, 1)
        assert numbers(await log.fix(0)) == {1: 1}


async def test_what_was_logged_counts_though_that_was_not_known_for_a_while(place: Place) -> None:
    """The append happened; the ordering says nothing until the log asks it what is there."""
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        await push(log, 1)
        around = plan.around
        silent: list[str] = []

        def broken(called: str, *call: Any) -> object:
            if len(silent) > len(_PAUSES_S):
                return around(called, *call)
            if not silent:
                around(called, *call)
            silent.append(called)
            raise Unclear(called, "the disk")

        plan.around = broken  # type: ignore[method-assign]
        with pytest.raises(Unclear):
            await push(log, 2, 3)
        assert silent == ["append", *["heads"] * len(_PAUSES_S)]
        assert (log.position("p"), log.waiting_rows(), log.next_sequence("p")) == (3, 3, 2)
        await log.push("a", zset((2, 1), (3, 1)), producer="p", sequence=1)
        await push(log, 4)
        assert (log.position("p"), log.waiting_rows()) == (4, 4)
        assert numbers(await log.fix(0)) == {1: 1, 2: 1, 3: 1, 4: 1}


# -- what waits


async def test_rows_wait_until_a_step_has_them(log: InputLog, store: Store) -> None:
    assert log.waiting_rows() == 0
    await push(log, 1, 2)
    await push(log, 3, handle="b", producer="q")
    log = await reopened(log, store)
    assert log.waiting_rows() == 3
    await push(log)
    await push(log, 4)
    assert log.waiting_rows() == 4
    await log.fix(0)
    assert log.waiting_rows() == 0
    await push(log, 5)
    await log.fix(0)  # once more
    assert log.waiting_rows() == 1
    await log.trim(1)
    log = await reopened(log, store)
    assert log.waiting_rows() == 1
    assert numbers(await log.fix(1)) == {5: 1}
    assert log.waiting_rows() == 0
    await log.__aexit__(None, None, None)


# -- steps that are passed over


async def test_a_step_that_is_passed_over_has_nothing_and_what_arrived_waits(
    log: InputLog, store: Store
) -> None:
    await log.pass_over(0)
    await push(log, 1, 2)
    for step in (1, 2):
        await log.pass_over(step)
        assert (log.last, log.waiting_rows(), await log.waiting()) == (step + 1, 2, {"a": 1, "b": 0})
    log = await reopened(log, store)
    assert log.waiting_rows() == 2
    assert [numbers(await log.fix(step)) for step in range(4)] == [{}, {}, {}, {1: 1, 2: 1}]
    assert (log.last, log.waiting_rows()) == (4, 0)
    await log.__aexit__(None, None, None)


async def test_what_waits_is_read_at_once_after_a_step_was_passed_over(log: InputLog) -> None:
    await push(log, 1)
    await log.pass_over(0)
    found = await asyncio.wait_for(log.read(1, asyncio.Event()), 60)
    assert numbers(found or {}) == {1: 1}
    reading = asyncio.create_task(log.read(2, asyncio.Event()))
    await log.pass_over(1)
    await push(log, 2)
    assert numbers(await asyncio.wait_for(reading, 60) or {}) == {2: 1}


@pytest.mark.parametrize("trimmed", [1, 2])
async def test_a_step_that_is_passed_over_leaves_sources_where_they_are(
    log: InputLog, store: Store, trimmed: int
) -> None:
    """Also as the first step of a process, where all before it are trimmed, as behind a stop: nothing is read twice."""
    start, end = Address(), Address("there", 900)
    await log.fix(0, {"file": Passage(start, end, 17)})
    await log.fix(1, {"file": Passage(end, end, 0)})
    await log.trim(trimmed)
    log = await reopened(log, store)
    await log.pass_over(2)
    assert await log.passages(2) == {"file": Passage(end, end, 0)}
    assert await log.where(3) == {"file": end}
    await log.__aexit__(None, None, None)


async def test_a_step_that_is_fixed_is_not_passed_over_any_more(log: InputLog) -> None:
    await push(log, 1)
    await log.fix(0)
    await push(log, 2)
    await log.fix(1)
    await log.trim(1)
    for step in (0, 1):
        await log.pass_over(step)
    assert (log.first, log.last) == (1, 2)
    assert numbers(await log.fix(1)) == {2: 1}
    with pytest.raises(StepOutOfRange) as raised:
        await log.pass_over(3)
    assert (raised.value.asked, raised.value.first, raised.value.last) == (3, 1, 2)


async def test_whoever_fixes_a_step_first_has_fixed_it(log: InputLog) -> None:
    await push(log, 1)
    await asyncio.gather(log.pass_over(0), log.fix(0), log.pass_over(0), log.fix(0))
    assert numbers(await log.fix(0)) == {}
    fixed = await asyncio.gather(log.fix(1), log.end(1), log.fix(1))
    assert [numbers(each) for each in fixed] == [{1: 1}] * 3
    assert (log.last, await log.ends()) == (2, (1,))


async def test_whoever_lost_the_log_passes_over_and_ends_nothing(log: InputLog, other: Store) -> None:
    async with await InputLog.open(other, "m", _HANDLES) as theirs:
        await theirs.fix(0)
        with pytest.raises(LogTaken):
            await log.pass_over(0)
        await theirs.end(1)
        with pytest.raises(LogTaken):
            await log.end(1)
        assert (theirs.last, await theirs.ends()) == (2, (1,))


@pytest.mark.parametrize("name", ["fix", "pass_over", "end"])
async def test_whoever_lost_the_log_long_ago_is_told_so(
    log: InputLog, other: Store, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So long ago that it is not known any more who appended."""
    monkeypatch.setattr("nebuli.store.shards.shard_state.RECENT", 4)
    async with await InputLog.open(other, "m", _HANDLES) as theirs:
        for step in range(10):
            await theirs.end(step)
        with pytest.raises(LogTaken):
            await getattr(log, name)(0)


# -- the end of event time


async def test_the_steps_with_which_event_time_ended_are_known(log: InputLog, store: Store) -> None:
    assert await log.ends() == ()
    await push(log, 1)
    assert numbers(await log.end(0)) == {1: 1}
    assert (log.last, await log.ends(), log.waiting_rows()) == (1, (0,), 0)
    assert numbers(await log.end(0)) == {1: 1}
    log = await reopened(log, store)
    assert await log.ends() == (0,)
    await log.fix(1)
    await push(log, 2)
    assert await log.ends() == (0,)
    assert numbers(await log.end(2)) == {2: 1}
    assert await log.ends() == (0, 2)
    await log.__aexit__(None, None, None)


async def test_ends_are_known_after_their_steps_were_trimmed(log: InputLog, store: Store) -> None:
    await log.fix(0)
    await log.end(1)
    await log.fix(2)
    await log.end(3)
    await log.fix(4)
    await log.trim(5)
    for name in ("m/remap", "m/ends"):
        await (await store.open_shard(name)).compact(full=True)
    log = await reopened(log, store)
    assert (log.first, log.last, await log.ends()) == (5, 5, (1, 3))
    await log.__aexit__(None, None, None)


async def test_a_step_that_was_fixed_without_it_can_be_the_end(log: InputLog, store: Store) -> None:
    await push(log, 1)
    for step in range(3):
        await log.fix(step)
    await push(log, 2)
    assert numbers(await log.end(1)) == {}
    assert (log.last, await log.ends(), log.waiting_rows()) == (3, (1,), 1)
    assert numbers(await log.end(0)) == {1: 1}
    assert await log.ends() == (1,)  # the later one
    await log.trim(1)
    for step in (0, 4):
        with pytest.raises(StepOutOfRange):
            await log.end(step)
    log = await reopened(log, store)
    assert (await log.ends(), log.last) == ((1,), 3)
    await log.__aexit__(None, None, None)


# -- what fails, or ends in the middle


async def story(log: InputLog, until: int, done: Any = lambda step: None) -> None:
    """Of three steps one is fixed, one passed over, one the end; before each some rows come. Goes on where it was."""
    for step in range(until):
        if log.next_sequence("p") <= step:
            await push(log, *range(10 * step, 10 * step + step % 4), handle="ab"[step % 2])
        if log.last <= step:
            await (log.fix, log.pass_over, log.end)[step % 3](step)
        done(step)


async def check(log: InputLog) -> None:
    """What the story has told so far, whoever told it."""
    pushed = log.next_sequence("p")
    assert log.last in (pushed - 1, pushed)
    assert log.position("p") == sum(step % 4 for step in range(pushed))
    rows: list[set[int]] = [{10 * step + n for n in range(step % 4)} for step in range(pushed)]
    waiting: set[int] = set()
    for step in range(log.last):
        waiting |= rows[step]
        expected, waiting = (set(), waiting) if step % 3 == 1 else (waiting, set())
        if step >= log.first:
            assert numbers(await log.fix(step)) == dict.fromkeys(expected, 1)
    assert log.waiting_rows() == len(waiting) + sum(map(len, rows[log.last :]))
    assert await log.ends() == tuple(range(2, log.last, 3))


_CALLS = range(32)
"""A few more than a story makes: at those beyond, nothing goes wrong."""


def refused(name: str) -> BaseException:
    return StoreFailed("the store", name, "the disk")


def failing(name: str) -> BaseException:
    return Unclear("writing", "the disk") if name == "append" else refused(name)


@pytest.mark.parametrize("how", [{"before": refused}, {"before": failing}, {"after": failing}])
@pytest.mark.parametrize("at", some(_CALLS))
async def test_a_call_that_fails_can_be_repeated_and_has_happened_once(
    place: Place, at: int, how: dict[str, Any]
) -> None:
    plan = Plan(at, **how)
    async with store_at(place, plan) as store:
        try:
            log = await InputLog.open(store, "m", _HANDLES)
            await log.__aenter__()
        except (Unclear, StoreFailed):
            log = await InputLog.open(store, "m", _HANDLES)
            await log.__aenter__()
        try:
            await story(log, 6)
        except (Unclear, StoreFailed):
            await story(log, 6)
        await check(log)
        await log.__aexit__(None, None, None)
    async with store_at(place) as later, await InputLog.open(later, "m", _HANDLES) as log:
        assert log.last == 6
        await check(log)


async def test_the_story_makes_fewer_calls_than_are_tried(place: Place) -> None:
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        await story(log, 6)
        await check(log)
    assert len(plan.calls) < len(_CALLS)


@pytest.mark.parametrize("name", ["fix", "end"])
async def test_what_a_cancelled_call_has_fixed_counts_once(place: Place, name: str) -> None:
    """Every other call is cancelled while it appends, and the others a few turns of the loop after they began."""
    plan = Plan()
    around = plan.around
    begun, goes_on = threading.Event(), threading.Event()
    goes_on.set()

    def held(called: str, *call: Any) -> object:
        if called == "append":
            begun.set()
            assert goes_on.wait(30)
        return around(called, *call)

    plan.around = held  # type: ignore[method-assign]
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        remap = await store.open_shard("m/remap")
        happened = 0
        for n in range(12):
            step = log.last
            await push(log, n)
            if n % 2:
                begun.clear()
                goes_on.clear()
            call = asyncio.ensure_future(getattr(log, name)(step))
            for _ in range(n):
                await asyncio.sleep(0)
            if n % 2:
                assert await asyncio.to_thread(begun.wait, 30)
            call.cancel()
            goes_on.set()
            await asyncio.wait([call])
            await remap.refresh()  # behind the append, if it was begun
            fixed = log.last == step + 1
            assert fixed or not n % 2
            happened += fixed and call.cancelled()
            await push(log, 100 + n)
            assert numbers(await log.fix(log.last)) == dict.fromkeys([100 + n] if fixed else [n, 100 + n], 1)
            assert numbers(await log.fix(step)) == dict.fromkeys([n] if fixed else [n, 100 + n], 1)
            assert log.waiting_rows() == 0
        assert happened >= 6


@pytest.mark.parametrize("name", ["fix", "pass_over", "end"])
async def test_a_step_that_is_unclear_for_long_is_fixed_once(place: Place, name: str) -> None:
    """It was fixed, and the ordering says nothing any more; meanwhile, more has arrived by another way."""
    plan = Plan()
    async with store_at(place, plan) as store, await InputLog.open(store, "m", _HANDLES) as log:
        await push(log, 1)
        around = plan.around
        appended: list[Any] = []

        def broken(called: str, *call: Any) -> object:
            if called == "append" and not appended:
                appended.append(around(called, *call))
            raise Unclear(called, "the disk")

        plan.around = broken  # type: ignore[method-assign]
        with pytest.raises(Unclear):
            await getattr(log, name)(0)
        plan.around = around  # type: ignore[method-assign]
        await push(log, 2)
        await getattr(log, name)(0)
        expected: dict[int, int] = {} if name == "pass_over" else {1: 1}
        assert numbers(await log.fix(0)) == expected
        assert (log.last, await log.ends()) == (1, (0,) if name == "end" else ())
        assert log.waiting_rows() == 2 - len(expected)


_MEMBER = """
import asyncio
import sys
from nebuli.store import Store
from nebuli.steps.logs.input_log import InputLog
from tests.nebuli.store.test_input_log import _HANDLES, story

async def live(folder):
    async with Store.at(folder) as store, await InputLog.open(store, "m", _HANDLES) as log:
        await story(log, 10_000, lambda step: print(step, flush=True))

asyncio.run(live(sys.argv[1]))
"""


def killed_after(folder: Path, step: int) -> None:
    """A member that is killed when it says that it is beyond a step."""
    process = start_program(_MEMBER, folder)
    with process.stdout:
        for line in process.stdout:
            if int(line) >= step:
                break
        process.kill()
    process.wait()


@pytest.mark.processes
@pytest.mark.long
async def test_what_a_killed_member_said_is_so(folder: Path) -> None:
    """DBSP-IN-2: with kill -9, at any moment after a step."""
    step = 0
    with drawn_seed() as seed:
        random = Random(seed)
        for _ in range(6):
            step += random.randrange(1, 20)
            await asyncio.to_thread(killed_after, folder, step)
            async with Store.at(folder) as store, await InputLog.open(store, "m", _HANDLES) as log:
                assert log.last > step
                await check(log)
                await log.trim(random.randrange(log.first, log.last + 1))
                step = log.last


# -- against a model


class InputLogAgainstModel(RuleBasedStateMachine):
    """``waiting`` has the rows that count for no step, ``steps`` those that do. Each row is a new number."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.folder = Path(tempfile.mkdtemp())
        self.numbers = 0
        self.waiting: dict[str, list[int]] = {"a": [], "b": []}
        self.steps: list[dict[str, list[int]]] = []
        self.first = 0
        self.ends: list[int] = []
        self.sent: dict[str, list[tuple[str, pa.RecordBatch]]] = {"p": [], "q": []}

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    @initialize()
    def enter(self) -> None:
        self.store = Store.at(self.folder)
        self.run(self.store.__aenter__())
        self.log: InputLog = self.run(InputLog.open(self.store, "m", _HANDLES))
        self.run(self.log.__aenter__())

    def leave(self) -> None:
        self.run(self.log.__aexit__(None, None, None))
        self.run(self.store.__aexit__(None, None, None))

    def teardown(self) -> None:
        self.leave()
        self.runner.close()
        shutil.rmtree(self.folder)

    @rule()
    def reopen(self) -> None:
        self.leave()
        self.enter()

    @rule(handle=st.sampled_from("ab"), producer=st.sampled_from("pq"), rows=st.integers(0, 3))
    def push(self, handle: str, producer: str, rows: int) -> None:
        new = list(range(self.numbers, self.numbers + rows))
        self.numbers += rows
        self.sent[producer].append((handle, zset(*((n, 1) for n in new))))
        self.waiting[handle] += new
        self._send(producer, len(self.sent[producer]) - 1)

    def _send(self, producer: str, sequence: int) -> None:
        handle, rows = self.sent[producer][sequence]
        self.run(self.log.push(handle, rows, producer=producer, sequence=sequence))

    @rule(producer=st.sampled_from("pq"), data=st.data())
    def push_again(self, producer: str, data: st.DataObject) -> None:
        if self.sent[producer]:
            self._send(producer, data.draw(st.integers(0, len(self.sent[producer]) - 1)))

    def _fixed(self, found: dict[str, pa.RecordBatch]) -> None:
        self.steps.append(self.waiting)
        self.waiting = {"a": [], "b": []}
        self._same(found, len(self.steps) - 1)

    def _same(self, found: dict[str, pa.RecordBatch], step: int) -> None:
        assert {handle: weights([rows]) for handle, rows in found.items()} == {
            handle: dict(Counter(rows)) for handle, rows in self.steps[step].items()
        }

    @rule()
    def fix(self) -> None:
        self._fixed(self.run(self.log.fix(len(self.steps))))

    @rule()
    def end(self) -> None:
        self.ends.append(len(self.steps))
        self._fixed(self.run(self.log.end(len(self.steps))))

    @rule()
    def pass_over(self) -> None:
        self.run(self.log.pass_over(len(self.steps)))
        self.steps.append({"a": [], "b": []})

    @rule(name=st.sampled_from(["fix", "end", "pass_over"]), turns=st.integers(1, 12))
    def cancel(self, name: str, turns: int) -> None:
        """The call is cancelled somewhere; the same one again has the step fixed once."""
        step = len(self.steps)

        async def cancelled() -> None:
            call = asyncio.ensure_future(getattr(self.log, name)(step))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])

        self.run(cancelled())
        getattr(self, name)()
        assert self.log.last == step + 1

    @rule(turns=st.integers(1, 12), again=st.sampled_from(["fix", "pass_over"]))
    def cancel_and_go_on(self, turns: int, again: str) -> None:
        """A pass over that is cancelled has happened or not; whatever is called next, nothing is lost or doubled."""
        step = len(self.steps)

        async def cancelled() -> dict[str, pa.RecordBatch]:
            call = asyncio.ensure_future(self.log.pass_over(step))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.wait([call])
            await getattr(self.log, again)(step)
            return await self.log.fix(step)

        found = self.run(cancelled())
        if again == "fix" and any(rows.num_rows for rows in found.values()):
            self._fixed(found)
        else:
            self.steps.append({"a": [], "b": []})
            self._same(found, step)

    @precondition(lambda self: self.first < len(self.steps))
    @rule(data=st.data(), name=st.sampled_from(["fix", "end", "pass_over"]))
    def repeat(self, data: st.DataObject, name: str) -> None:
        step = data.draw(st.integers(self.first, len(self.steps) - 1))
        found = self.run(getattr(self.log, name)(step))
        if name == "end":
            self.ends += [step] if step > max(self.ends, default=-1) else []
        if name != "pass_over":
            self._same(found, step)

    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        self.first = data.draw(st.integers(self.first, len(self.steps)))
        self.run(self.log.trim(self.first))

    @invariant()
    def the_log_is_as_the_model(self) -> None:
        if not hasattr(self, "log"):
            return
        log = self.log
        assert (log.first, log.last) == (self.first, len(self.steps))
        assert self.run(log.ends()) == tuple(self.ends)
        assert log.waiting_rows() == sum(map(len, self.waiting.values()))
        for producer, sent in self.sent.items():
            assert log.position(producer) == sum(rows.num_rows for _, rows in sent)
            assert log.next_sequence(producer) == len(sent)


TestInputLogAgainstModel = pytest.mark.long(InputLogAgainstModel.TestCase)
TestInputLogAgainstModel.settings = settings(
    max_examples=examples(100), stateful_step_count=40, suppress_health_check=list(HealthCheck), deadline=None
)
