"""What a history is made of: rows of bodies, sums, parts of frames, consumers; without any I/O."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from netchannel.core.replay.consumers import CONSUMERS_LIMIT, Consumers, SavedConsumer
from netchannel.core.replay.history import MemoryHistory
from netchannel.core.replay.index import Index
from netchannel.core.sending.packer import Packer
from netchannel.errors import ChannelInUse, ConsumerFenced, NetChannelError, SchemaMismatch
from netchannel.policies import RetainPolicy
from netchannel.storage.openers import HistoryOpener
from netchannel.wire.codec import make_encoder
from netchannel.wire.frame_memory import FrameMemory
from netchannel.wire.frames import ALONE, Scattered
from netchannel.wire.rows import count_rows, unpacked
from tests.support.simulated_files import Crash, SimulatedFiles
from tests.support.sizes import examples
from tests.support.world import World

TYPES = [
    pa.int64(),
    pa.string(),
    pa.list_(pa.int8()),
    pa.dictionary(pa.int8(), pa.string()),
    pa.struct([("x", pa.float32())]),
    pa.null(),
]


@settings(deadline=None)
@given(st.lists(st.sampled_from(TYPES), max_size=5), st.integers(0, 3000))
def test_rows_are_what_pyarrow_says(types: list[pa.DataType], rows: int) -> None:
    """Of bodies as they come, with dictionaries or without."""
    schema = pa.schema([(f"c{place}", kind) for place, kind in enumerate(types)])
    arrays = [pa.nulls(rows, kind) for kind in types]
    batch = pa.RecordBatch.from_arrays(arrays, schema=schema)
    expected = batch.num_rows  # none, where there are no columns
    body = make_encoder("arrow", schema).encode(batch)
    assert count_rows(b"".join(body.pieces) if isinstance(body, Scattered) else body) == expected
    if not any(map(pa.types.is_dictionary, types)):
        assert count_rows(batch.serialize().to_pybytes()) == expected


@settings(deadline=None)
@given(st.binary(max_size=300), st.integers(0, 300), st.binary(min_size=1, max_size=8))
def test_bodies_that_are_none_are_typed_errors(noise: bytes, place: int, change: bytes) -> None:
    """CH-BAD-1: noise, and batches with something changed in their metadata."""
    good = pa.record_batch({"n": [1, 2, 3]}).serialize().to_pybytes()
    for body in (noise, good[:place], good[:place] + change + good[place + len(change) :]):
        with suppress(SchemaMismatch):
            assert 0 <= count_rows(body) < 1 << 40


def test_a_schema_is_no_batch() -> None:
    with pytest.raises(SchemaMismatch, match="not an Arrow record batch"):
        count_rows(pa.schema([("n", pa.int64())]).serialize().to_pybytes())


# -- ranges by size

SIZES = st.sampled_from([0, 1, 7, 8, 100, ALONE, ALONE + 1])


@settings(deadline=None, max_examples=examples(200))
@given(
    st.lists(st.lists(st.tuples(SIZES, st.sampled_from([b"", b"note"])), min_size=1, max_size=6), max_size=6),
    st.data(),
)
def test_ranges_are_found_as_a_loop_over_all_messages_finds_them(
    packs: list[list[tuple[int, bytes]]], data: st.DataObject
) -> None:
    """CH-REP-2: and read, cut anywhere."""
    history = MemoryHistory("s", "bytes", 1 << 30)
    messages: list[tuple[bytes, bytes]] = []
    for pack in packs:
        packer = Packer(FrameMemory())
        packer.since = len(messages)
        for size, note in pack:
            body = bytes([len(messages) % 256]) * size
            packer.add(body, note, size + len(note))
            messages.append((body, note))
        for record in packer.records(len(messages) - len(pack)):
            history.keep(record, record.end - record.first, record.size)
    released = data.draw(st.integers(0, len(messages)))
    history.release(released)
    first = data.draw(st.integers(released, len(messages)))
    max_rows = data.draw(st.none() | st.integers(1, 20))
    max_bytes = data.draw(st.none() | st.sampled_from([1, 8, 100, 1000, ALONE, 3 * ALONE]))
    until, rows, size = first, 0, 0
    for body, note in messages[first:]:
        more = len(body) + len(note)
        fits = (max_rows is None or rows < max_rows) and (max_bytes is None or size + more <= max_bytes)
        if not fits and until > first:
            break
        until, rows, size = until + 1, rows + 1, size + more
    answers: list[Any] = []
    history.locate(first, max_rows, max_bytes, lambda found, now: answers.append(found), 0.0)
    assert answers == [(until, rows, size)]
    cursor = history.cursor(first, until, lambda: None)
    read = []
    while (record := cursor.take()) is not None:
        assert record.first == first + len(read)
        if record.buffers:
            bodies, notes, _ = unpacked(b"".join(record.buffers))
            read += zip(map(bytes, bodies), notes or [b""] * len(bodies), strict=True)
        else:
            read.append((bytes(record.body), record.note))  # type: ignore[arg-type]
    assert read == messages[first:until]


def test_sums_go_on_when_the_oldest_are_forgotten() -> None:
    """Also where so many are that the arrays are made anew."""
    draw = random.Random(3)
    index, ends, rows, sizes = Index(5, 50, 500), [5], [50], [500]
    times = [1000]  # of the record that ends at the same place
    for _ in range(5000):
        count = draw.randint(1, 5)
        ends.append(ends[-1] + count)
        rows.append(rows[-1] + draw.randint(0, 9))
        sizes.append(sizes[-1] + draw.randint(0, 99))
        times.append(times[-1] + draw.randint(-3, 9))
        index.add(ends[-1], rows[-1] - rows[-2], sizes[-1] - sizes[-2], times[-1])
        upto = draw.randint(index.oldest, index.head)
        if draw.random() < 0.9:
            upto = min(upto, index.oldest + 4)
        oldest = index.trim(upto)
        assert oldest == max(end for end in ends if end <= upto)
        assert (index.head, index.rows, index.size) == (ends[-1], rows[-1], sizes[-1])
        sequence = draw.randint(oldest, index.head)
        place = max(place for place, end in enumerate(ends) if end <= sequence)
        assert index.below(sequence) == (ends[place], rows[place], sizes[place])
        assert index.kept == sizes[-1] - sizes[ends.index(oldest)]
        at = draw.choice(times[-9:]) + draw.randint(-2, 2)
        first = ends.index(oldest) + 1
        since, before = index.moment(at)
        late = [place for place in range(first, len(ends)) if times[place] >= at]
        gone = any(time >= at for time in times[1:first])
        assert since == (oldest if gone else ends[late[0] - 1] if late else index.head)
        early = [ends[place] for place in range(first, len(ends)) if times[place] < at]
        assert before == max(early, default=oldest)


# -- consumers

NAMES, HOLDERS = st.sampled_from(["a", "b"]), st.sampled_from(["x", "y", "z"])
LEASE_S = 10.0


class ConsumerMachine(RuleBasedStateMachine):
    """CH-REP-4: beside a model that is a list of what each holder did last."""

    def __init__(self) -> None:
        super().__init__()
        self.consumers = Consumers(LEASE_S)
        self.now = 0.0
        self.head = 0
        self.positions: dict[str, int] = {}
        self.holder: dict[str, str] = {}
        self.connected: dict[str, int | None] = {}
        self.gone_at: dict[str, float] = {}
        self.connections: dict[str, int] = {}
        self.former: dict[str, int] = {}  # still there, though the holder has come on another one
        self.count = 0

    def connection(self, holder: str) -> int:
        if holder not in self.connections:
            self.count += 1
            self.connections[holder] = self.count
        return self.connections[holder]

    def free_for(self, name: str, holder: str) -> bool:
        if self.holder.get(name, holder) == holder:
            return True
        expired = self.now >= self.gone_at.get(name, 0.0) + LEASE_S
        return self.connected[name] is None and expired

    @rule(count=st.integers(1, 5))
    def grow(self, count: int) -> None:
        self.head += count

    @rule(seconds=st.sampled_from([LEASE_S / 2, LEASE_S]))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds

    def oldest(self) -> int:
        return min(self.positions.values(), default=0)

    @rule(name=NAMES, holder=HOLDERS)
    def hold(self, name: str, holder: str) -> None:
        connection = self.connection(holder)

        def held() -> int:
            oldest = self.oldest()
            return self.consumers.hold(name, holder, connection, "", self.now, oldest=oldest).position

        if not self.free_for(name, holder):
            with pytest.raises(ChannelInUse):
                held()
            return
        self.positions.setdefault(name, self.oldest())
        assert held() == self.positions[name]
        self.holder[name], self.connected[name] = holder, connection

    @rule(name=NAMES, holder=HOLDERS)
    def renew(self, name: str, holder: str) -> None:
        connection = self.connection(holder)
        if self.holder.get(name) != holder:
            with pytest.raises(ConsumerFenced):
                self.consumers.hold(name, holder, connection, "", self.now, oldest=0, renew=True)
            return
        self.consumers.hold(name, holder, connection, "", self.now, oldest=0, renew=True)
        self.connected[name] = connection

    @rule(name=NAMES, holder=HOLDERS, back=st.integers(0, 6))
    def acknowledge(self, name: str, holder: str, back: int) -> None:
        upto = max(0, self.head - back)
        if self.holder.get(name) != holder:
            with pytest.raises(ConsumerFenced):
                self.consumers.acknowledge(name, holder, upto)
            return
        self.positions[name] = max(self.positions[name], upto)
        assert self.consumers.acknowledge(name, holder, upto).position == self.positions[name]

    @rule(holder=HOLDERS)
    def lose(self, holder: str) -> None:
        if holder not in self.connections:
            return
        connection = self.connections.pop(holder)
        self.consumers.left(connection, self.now)
        for name, connected in self.connected.items():
            if connected == connection:
                self.connected[name], self.gone_at[name] = None, self.now

    @rule(holder=HOLDERS)
    def succeed(self, holder: str) -> None:
        if holder in self.connections:
            self.former[holder] = self.connections.pop(holder)

    @rule(name=NAMES, holder=HOLDERS, formerly=st.booleans())
    def release(self, name: str, holder: str, formerly: bool) -> None:
        connection = (self.former if formerly else self.connections).get(holder)
        if connection is None:
            return
        self.consumers.release(name, holder, connection, self.now)
        if self.holder.get(name) == holder and self.connected[name] == connection:
            self.connected[name], self.gone_at[name] = None, self.now

    @precondition(lambda self: bool(self.positions))
    @rule(name=NAMES)
    def forget(self, name: str) -> None:
        assert self.consumers.forget(name) == (name in self.positions)
        for known in (self.positions, self.holder, self.connected, self.gone_at):
            known.pop(name, None)  # type: ignore[attr-defined]

    @rule()
    def restart(self) -> None:
        remembered = self.consumers.positions()
        self.consumers = Consumers(LEASE_S)
        self.consumers.restore(remembered, self.now)
        self.connections.clear()
        self.former.clear()
        for name in self.positions:
            self.connected[name], self.gone_at[name] = None, self.now

    @invariant()
    def nothing_is_freed_that_somebody_wants(self) -> None:
        assert self.consumers.lowest == min(self.positions.values(), default=None)


TestConsumers = ConsumerMachine.TestCase
TestConsumers.settings = settings(max_examples=examples(200), stateful_step_count=40, deadline=None)


@pytest.mark.parametrize(
    ("name", "instead"),
    [
        (
            "acknowledge",
            lambda consumers, name, holder, upto: consumers._known[name],
        ),
        ("positions", lambda consumers: {}),
    ],
)
def test_the_machine_notices_what_is_missing(
    name: str, instead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative controls."""
    from hypothesis.stateful import run_state_machine_as_test

    monkeypatch.setattr(Consumers, name, instead)
    with pytest.raises((AssertionError, KeyError, ChannelInUse, ConsumerFenced, pytest.fail.Exception)):
        run_state_machine_as_test(
            ConsumerMachine,
            settings=settings(max_examples=300, deadline=None, database=None, report_multiple_bugs=False),
        )


def taken_over() -> None:
    machine = ConsumerMachine()
    machine.hold("a", "x")
    machine.lose("x")
    machine.pass_time(LEASE_S)
    machine.hold("a", "y")


def test_the_machine_notices_leases_that_do_not_expire(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same: few orders of events need it, so that one is given."""
    taken_over()
    monkeypatch.setattr(Consumers, "left", lambda consumers, connection, now: None)
    with pytest.raises(ChannelInUse):
        taken_over()


@pytest.mark.parametrize("power", [False, True])
def test_names_outlive_a_stream_that_is_replaced_wherever_the_keeper_stops(power: bool) -> None:
    """CH-REP-4: what they have not acknowledged is of the stream that is there."""
    streams = set()
    for crash_at in range(25):
        world, files = World(crash_at), SimulatedFiles(crash_at)
        histories = HistoryOpener(world.receiver(), "c", "bytes", RetainPolicy(directory=Path("/")), files)
        before = histories.begin("before")
        before.positions = lambda: {"me": SavedConsumer(2, "holder", used=True)}
        told: list[Any] = []
        for count in (1, 2):
            packer = Packer(FrameMemory())
            packer.since = count - 1
            packer.add(b"x", b"", 1)
            (record,) = packer.records(count - 1)
            before.keep(record, 1, 1)
        before.settle(lambda error, now, told=told: told.append(error), world.now)
        world.run(lambda told=told: bool(told))
        assert told == [None]
        files.crash_at = crash_at
        try:
            histories.replace("after", 0, before, lambda made, now, told=told: told.append(made), world.now)
            world.run(lambda told=told: len(told) == 2)
        except Crash:
            pass
        files.power_on() if power else files.kill()
        # The sender of before may be the first to come again.
        again = histories.kept() or histories.begin("before")
        assert {name: each.holder for name, each in again.remembered.items()} == {"me": "holder"}
        assert again.oldest <= again.remembered["me"].position <= again.head
        streams.add((again.stream, again.head))
        again.leave(discard=True, then=lambda now, told=told: told.append(now), now=world.now)
        world.run(lambda told=told: isinstance(told[-1], float))
        assert files.names(Path("/")) == []
    assert streams == {("before", 2), ("before", 0), ("after", 0)}


def test_a_name_is_given_back_by_who_has_it() -> None:
    """Not by the reader before, which closes once its successor has come under the same holder's name."""
    consumers = Consumers(LEASE_S)
    consumers.hold("a", "me", "before", "", 0.0, oldest=0)
    consumers.hold("a", "me", "after", "", 0.0, oldest=0)
    consumers.release("a", "me", "before", 0.0)
    with pytest.raises(ChannelInUse, match="is connected"):
        consumers.hold("a", "you", "third", "", 2 * LEASE_S, oldest=0)
    consumers.release("a", "you", "after", 2 * LEASE_S)
    with pytest.raises(ChannelInUse, match="is connected"):
        consumers.hold("a", "you", "third", "", 4 * LEASE_S, oldest=0)
    consumers.release("a", "me", "after", 4 * LEASE_S)
    assert consumers.hold("a", "you", "third", "", 5 * LEASE_S, oldest=0).holder == "you"


@pytest.mark.parametrize(
    "names", ["me", ("me", ""), ("x" * 256,), ("\n",), (3,), tuple(map(str, range(1001)))]
)
def test_names_that_cannot_be_are_refused_where_they_are_given(names: Any) -> None:
    with pytest.raises(ValueError, match=r"consumers .* 1000 names"):
        RetainPolicy(consumers=names)


def test_names_are_bounded() -> None:
    consumers = Consumers(1.0)
    for name in ("", "\n", "x" * 256):
        with pytest.raises(NetChannelError, match="expected 1 to 255"):
            consumers.hold(name, "me", 1, "", 0.0, oldest=0)
    for number in range(CONSUMERS_LIMIT):
        consumers.hold(str(number), "me", 1, "", 0.0, oldest=0)
    with pytest.raises(NetChannelError, match="consumers already"):
        consumers.hold("one more", "me", 1, "", 0.0, oldest=0)
