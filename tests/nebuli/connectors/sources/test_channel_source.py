"""A kept channel as a source: every message once, in order, from wherever; and what is said where that cannot be."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Event
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import netchannel
from nebuli.connectors.endpoints import Rereadable, Signal
from nebuli.connectors.errors import InputError, InputGone
from nebuli.connectors.sources.channel_source import KeptChannelSource
from tests.support.authority import Authority
from tests.support.fleet import tls_keys
from tests.support.keeper import Keeper, numbers
from tests.support.sizes import examples
from tests.support.waiting import wait_for
from topology import ChannelSource, Column, DataType

N = (Column(name="n", type=DataType.INT64),)


class Reading:
    """A source, polled by hand."""

    def __init__(self, source: KeptChannelSource, woken: Event) -> None:
        self.source = source
        self._woken = woken

    def next(self) -> list[int] | None:
        """The next numbers; None at the end."""
        while True:
            self._woken.clear()
            found = self.source.poll()
            if found is Signal.END:
                return None
            if isinstance(found, pa.RecordBatch):
                assert found.column("_weight").to_pylist() == [1] * found.num_rows
                return list(found.column("n").to_pylist())
            assert self._woken.wait(30), "poll returned LATER, but the source did not wake"

    def take(self, count: int) -> list[int]:
        """So many numbers or more; all that come with the last of them."""
        found: list[int] = []
        while len(found) < count:
            more = self.next()
            assert more is not None, f"it ended after {found}"
            found += more
        return found

    def rest(self) -> list[int]:
        """All numbers up to the clean end."""
        found: list[int] = []
        while (more := self.next()) is not None:
            found += more
        return found


@contextmanager
def reading(
    keeper: Keeper, *, seek: str | None = None, skip: int = 0, columns: Any = N, **keys: Any
) -> Iterator[Reading]:
    keys = {"address": keeper.address, "channel": "c", **keys}
    woken = Event()
    model = ChannelSource.model_validate({"logical": "l", "type": "Channel", **keys})
    source = KeptChannelSource(model, columns, woken.set)
    if seek is not None:
        source.seek(seek)
    try:
        source.open()
        if skip:
            source.skip(skip)
        yield Reading(source, woken)
    finally:
        source.close("the test is over")


@pytest.fixture
def keeper() -> Iterator[Keeper]:
    with Keeper() as keeper:
        yield keeper


def acknowledged(keeper: Keeper, consumer: str) -> int:
    """The number below which the consumer has acknowledged everything."""

    async def ask() -> int:
        async with netchannel.ChannelReader(keeper.address, "c") as reader:
            while True:
                try:
                    return await reader.hold(consumer)
                except netchannel.ChannelInUse:  # for the rest of a lease
                    await asyncio.sleep(0.01)

    return keeper.do(ask())


def test_every_message_comes_once_and_in_order_up_to_the_end(keeper: Keeper) -> None:
    keeper.send(*(numbers(first, 10) for first in range(0, 1000, 10)))
    keeper.end()
    with reading(keeper) as found:
        assert isinstance(found.source, Rereadable)
        assert found.source.position == ""
        assert found.rest() == list(range(1000))
        assert found.source.position == f"{keeper.heads.stream}/100"


def test_what_is_sent_while_it_reads_comes_too(keeper: Keeper) -> None:
    keeper.send(numbers(0, 10))
    with reading(keeper) as found:
        assert found.take(10) == list(range(10))
        assert found.source.poll() is Signal.LATER
        keeper.send(numbers(10, 10))
        assert found.take(10) == list(range(10, 20))
        keeper.end()
        assert found.rest() == []


def test_it_may_be_read_before_anybody_keeps_it(keeper: Keeper) -> None:
    with reading(keeper) as found:
        assert found.source.poll() is Signal.LATER
        keeper.send(numbers(0, 1))
        keeper.end()
        assert found.rest() == [0]


def test_a_stream_without_messages_ends(keeper: Keeper) -> None:
    keeper.send()
    keeper.end()
    with reading(keeper) as found:
        assert found.rest() == []


def test_messages_without_rows_are_passed_over(keeper: Keeper) -> None:
    keeper.send(numbers(0, 0), numbers(0, 1), numbers(0, 0))
    keeper.end()
    with reading(keeper) as found:
        assert found.rest() == [0]


def test_more_than_a_batch_takes_comes_in_several(keeper: Keeper) -> None:
    keeper.send(*(numbers(first, 30_000) for first in range(0, 300_000, 30_000)))
    keeper.end()
    with reading(keeper) as found:
        first = found.next()
        assert first is not None
        assert len(first) < 300_000
        assert first + found.rest() == list(range(300_000))


@settings(max_examples=examples(20))
@given(st.data())
def test_it_goes_on_at_any_position_that_it_gave(kept: Keeper, data: st.DataObject) -> None:
    """Whole messages lie before it and behind it: together they are all, each once."""
    number = data.draw(st.integers(0, 40))
    position = f"{kept.heads.stream}/{number}"
    behind = sum(row % 7 for row in range(number))
    with reading(kept, seek=position) as found:
        assert found.source.position == position
        assert found.rest() == list(range(behind, sum(row % 7 for row in range(40))))


@settings(max_examples=examples(20))
@given(rows=st.integers(0, sum(row % 7 for row in range(40))), named=st.booleans())
def test_it_begins_behind_any_number_of_rows(kept: Keeper, rows: int, named: bool) -> None:
    with reading(kept, skip=rows, **({"consumer": "reader"} if named else {})) as found:
        assert found.rest() == list(range(rows, sum(row % 7 for row in range(40))))


@pytest.fixture(scope="module")
def kept() -> Iterator[Keeper]:
    """A stream of 40 messages, of 0 to 6 rows each."""
    with Keeper() as keeper:
        first = 0
        for number in range(40):
            keeper.send(numbers(first, number % 7))
            first += number % 7
        keeper.end()
        yield keeper


def test_positions_that_it_gives_lie_between_its_batches(keeper: Keeper) -> None:
    positions = []
    with reading(keeper) as found:
        for first in range(0, 30, 10):
            keeper.send(numbers(first, 10))
            assert found.next() == list(range(first, first + 10))
            positions.append(found.source.position)
        keeper.end()
    for place, position in enumerate(positions, 1):
        with reading(keeper, seek=position) as other:
            assert other.rest() == list(range(10 * place, 30))


def test_the_empty_position_is_the_beginning(keeper: Keeper) -> None:
    keeper.send(numbers(0, 3))
    keeper.end()
    with reading(keeper, seek="") as found:
        assert found.rest() == [0, 1, 2]


def test_from_latest_only_what_comes_then(keeper: Keeper) -> None:
    keeper.send(numbers(0, 10))
    more = count(10)
    with reading(keeper, **{"from": "latest"}) as found:

        def sent_and_found() -> list[int]:
            keeper.send(numbers(next(more), 1))
            batch = found.source.poll()
            return [] if isinstance(batch, Signal) else list(batch.column("n").to_pylist())

        came = wait_for(sent_and_found, "something that was sent since")
        assert came == list(range(came[0], came[0] + len(came)))
        assert came[0] >= 10


# -- the consumer


def test_what_is_released_is_acknowledged_under_the_consumers_name_and_freed(keeper: Keeper) -> None:
    keeper.send(*(numbers(number, 1) for number in range(10)))
    with reading(keeper, consumer="job") as found:
        found.take(10)
        assert keeper.heads.oldest == 0
        found.source.release(f"{keeper.heads.stream}/4")
        wait_for(lambda: keeper.heads.oldest == 4, "it is freed")
        found.source.release(found.source.position)
    assert acknowledged(keeper, "job") == 10


def test_what_is_released_just_before_the_end_is_acknowledged_all_the_same(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper.send(numbers(0, 1))

    class Slow(netchannel.ChannelReader):
        async def ack(self, consumer: str, upto: netchannel.Position | int) -> None:
            for _ in range(10):  # the end comes meanwhile
                await asyncio.sleep(0)
            await super().ack(consumer, upto)

    monkeypatch.setattr(netchannel, "ChannelReader", Slow)
    with reading(keeper, consumer="job") as found:
        found.take(1)
        found.source.release(found.source.position)
    monkeypatch.undo()
    assert acknowledged(keeper, "job") == 1


def test_without_a_consumer_nothing_is_acknowledged(keeper: Keeper) -> None:
    keeper.send(numbers(0, 1))
    keeper.end()
    with reading(keeper) as found:
        assert found.rest() == [0]
        found.source.release(found.source.position)
    with reading(keeper) as found:
        assert found.rest() == [0]


def test_a_consumer_that_releases_nothing_reads_the_same_again(keeper: Keeper) -> None:
    keeper.send(numbers(0, 5))
    keeper.end()
    for _ in range(2):
        with reading(keeper, consumer="job") as found:
            assert found.rest() == [0, 1, 2, 3, 4]


def test_a_consumer_begins_where_it_has_acknowledged(keeper: Keeper) -> None:
    keeper.send(*(numbers(number, 1) for number in range(5)))
    keeper.end()
    with reading(keeper, consumer="job") as found:
        found.rest()
        found.source.release(f"{keeper.heads.stream}/3")
    with reading(keeper, consumer="job") as found:
        assert found.rest() == [3, 4]


def test_one_process_reads_as_one_consumer_twice_at_once(keeper: Keeper) -> None:
    """As a member does that goes on, and reads again what it replays; or a query that joins a source with itself."""
    keeper.send(numbers(0, 1))
    with reading(keeper, consumer="job") as first, reading(keeper, consumer="job") as second:
        assert first.take(1) == second.take(1) == [0]
        second.source.close("it is replayed")
        keeper.send(numbers(1, 1))
        assert first.take(1) == [1]
        first.source.release(first.source.position)
        wait_for(lambda: keeper.heads.oldest == 2, "it is freed")


def test_a_name_that_somebody_else_has_is_waited_for(keeper: Keeper) -> None:
    keeper.send(numbers(0, 1))
    with reading(keeper, consumer="job", holder="one") as first:
        first.take(1)
        with reading(keeper, consumer="job", holder="two") as second:
            assert second.source.poll() is Signal.LATER
            first.source.close("it is done")
            assert second.take(1) == [0]


def test_a_stream_that_comes_while_the_name_is_asked_for_is_read_from_its_own_beginning(
    keeper: Keeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that is meant in the old stream is none of the new one."""
    keeper.send(numbers(0, 1), numbers(1, 1))
    keeper.end()
    with reading(keeper, consumer="job") as found:
        assert found.rest() == [0, 1]
        found.source.release(found.source.position)

    class Overtaken(netchannel.ChannelReader):
        async def hold(self, consumer: str, *, holder: str | None = None, fresh: bool = False) -> int:
            if keeper.heads.ended and self.latest is not None:  # the source has seen the old stream
                await asyncio.to_thread(keeper.send, *(numbers(number, 1) for number in range(5, 9)))
            return await super().hold(consumer, holder=holder, fresh=fresh)

    monkeypatch.setattr(netchannel, "ChannelReader", Overtaken)
    with reading(keeper, consumer="job") as found:
        assert found.take(4) == [5, 6, 7, 8]


def test_whoever_comes_back_as_the_same_holder_has_the_name_at_once() -> None:
    """CH-REP-4: as a query does whose process was killed; another one waits for the lease to be over."""
    with Keeper(lease_s=3600) as keeper:
        keeper.send(*(numbers(number, 1) for number in range(5)))
        keeper.end()
        with reading(keeper, consumer="job", holder="query 7") as found:
            assert found.rest() == [0, 1, 2, 3, 4]
            found.source.release(f"{keeper.heads.stream}/3")
        with reading(keeper, consumer="job", holder="query 7") as found:
            assert found.rest() == [3, 4]


# -- what cannot go on


def test_a_stream_that_was_replaced_is_named_with_both_numbers(keeper: Keeper) -> None:
    """CH-REP-3: another stream is an error, and no silent gap."""
    keeper.send(numbers(0, 1), numbers(1, 1))
    keeper.end()
    with reading(keeper) as found:
        found.rest()
        position = found.source.position
    old = keeper.heads.stream
    keeper.send(*(numbers(number, 1) for number in range(5)))
    with reading(keeper, seek=position) as found, pytest.raises(InputGone) as caught:
        found.rest()
    said = str(caught.value)
    assert f"message 2 of stream {old}" in said
    assert f"stream {keeper.heads.stream}, up to message 5" in said
    assert "restart the query from scratch; give the source a consumer" in said


def test_a_stream_that_is_replaced_while_it_is_read_is_noticed(keeper: Keeper) -> None:
    """Its producer was killed, and the successor has a stream of its own: what comes is not what comes next."""
    keeper.send(numbers(0, 1))
    with reading(keeper) as found:
        found.take(1)
        old = keeper.heads.stream
        keeper.leave()
        keeper.send()
        with pytest.raises(InputGone, match=f"message 1 of stream {old}"):
            found.next()


def test_a_place_below_what_is_kept_is_named_with_both_numbers(keeper: Keeper) -> None:
    """CH-REP-3: below the acknowledged position is an error, and no silent gap."""
    keeper.send(*(numbers(number, 1) for number in range(10)))
    with reading(keeper, consumer="job") as found:
        found.take(10)
        found.source.release(f"{keeper.heads.stream}/7")
        wait_for(lambda: keeper.heads.oldest == 7, "it is freed")
        with reading(keeper, seek=f"{keeper.heads.stream}/5") as other, pytest.raises(InputGone) as caught:
            other.rest()
    stream = keeper.heads.stream
    assert f"needs message 5 of stream {stream} next, but the oldest kept message is 7" in str(caught.value)


def test_rows_are_not_counted_from_another_beginning(keeper: Keeper) -> None:
    """Without a consumer nobody knows where a predecessor began: rather an error than other rows."""
    keeper.send(*(numbers(number, 1) for number in range(10)))
    with reading(keeper, consumer="job") as found:
        found.take(10)
        found.source.release(f"{keeper.heads.stream}/7")
        wait_for(lambda: keeper.heads.oldest == 7, "it is freed")
    with reading(keeper, skip=2) as other, pytest.raises(InputGone, match=r"2 rows of stream .* message 7"):
        other.rest()


def test_a_stream_with_fewer_rows_than_were_read_is_another(keeper: Keeper) -> None:
    keeper.send(numbers(0, 5))
    keeper.end()
    with (
        reading(keeper, skip=7, consumer="job") as found,
        pytest.raises(InputGone, match="ends 2 rows before"),
    ):
        found.rest()


def test_a_place_behind_the_last_message_is_named(keeper: Keeper) -> None:
    keeper.send(numbers(0, 1))
    said = r"needs message 3 of stream \w+ next, but the stream has only 1"
    with (
        reading(keeper, seek=f"{keeper.heads.stream}/3") as found,
        pytest.raises(InputGone, match=said),
    ):
        found.rest()


@pytest.mark.parametrize("text", ["5", "/5", "a/", "a/-1", "a/²"])
def test_a_text_that_is_no_position_is_refused(keeper: Keeper, text: str) -> None:
    said = "is not a position of a channel: expected STREAM/SEQUENCE"
    with pytest.raises(InputError, match=said), reading(keeper, seek=text):
        pass


def test_an_aborted_stream_fails_with_the_producers_words_behind_its_rows(keeper: Keeper) -> None:
    keeper.send(numbers(0, 3))
    with reading(keeper) as found:
        assert found.take(3) == [0, 1, 2]
        keeper.abort("the sensor burns")
        with pytest.raises(InputError, match=r"aborted stream .* at message 1: the sensor burns"):
            found.next()


@pytest.mark.parametrize(
    ("batch", "said"),
    [
        ({"m": [1]}, "no column n, which the logical source has; the channel's columns are m"),
        ({"n": ["x"]}, "column n is string, but int64 in the logical source"),
        ({"n": [1], "_weight": [1]}, "a column _weight, so it contains changes"),
    ],
)
def test_another_schema_is_an_error_that_says_both(keeper: Keeper, batch: dict[str, Any], said: str) -> None:
    keeper.send(pa.record_batch(batch))
    with reading(keeper) as found, pytest.raises(InputError) as caught:
        found.next()
    assert str(caught.value).startswith(f"channel c at {keeper.address}: ")
    assert said in str(caught.value)


def test_columns_are_found_by_name_and_may_be_narrower(keeper: Keeper) -> None:
    keeper.send(pa.record_batch({"other": ["a"], "n": pa.array([5], pa.int16())}))
    keeper.end()
    with reading(keeper) as found:
        assert found.rest() == [5]


def test_a_channel_of_bytes_is_refused() -> None:
    with Keeper(codec="bytes") as keeper:
        keeper.send(b"text")
        with reading(keeper) as found, pytest.raises(InputError, match="has the codec 'bytes'"):
            found.next()


def test_nobody_there_is_an_error_once_the_fault_policy_says_so(keeper: Keeper) -> None:
    nobody: dict[str, Any] = {"address": "127.0.0.1:1", "fault": {"retry": 0.1}}
    with reading(keeper, **nobody) as found, pytest.raises(InputError, match=r"127\.0\.0\.1:1"):
        found.next()


def test_its_secret_is_that_of_who_keeps_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("open sesame\n", "utf-8")
    with Keeper(secret="open sesame") as keeper:
        keeper.send(numbers(0, 1))
        keeper.end()
        with reading(keeper, secret={"file": str(tmp_path / "secret")}) as found:
            assert found.rest() == [0]
        with reading(keeper) as found, pytest.raises(InputError, match="secret"):
            found.rest()


def test_its_certificates_are_those_that_whoever_keeps_it_takes(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    ours, theirs = authority.issue("reader"), authority.issue("keeper")
    with Keeper(tls=theirs) as keeper:
        keeper.send(numbers(0, 1))
        keeper.end()
        with reading(keeper, tls=tls_keys(ours)) as found:
            assert found.rest() == [0]
        absent: dict[str, Any] = {**tls_keys(ours), "key": str(tmp_path / "absent")}
        with pytest.raises(InputError, match=r"channel c at .*absent"), reading(keeper, tls=absent):
            pass


def test_a_secret_that_is_not_there_is_named(keeper: Keeper, tmp_path: Path) -> None:
    absent = {"file": str(tmp_path / "absent")}
    said = r"channel c at .*absent cannot be read"
    with pytest.raises(InputError, match=said), reading(keeper, secret=absent):
        pass


def test_every_message_comes_once_over_restarts_of_who_keeps_it(tmp_path: Path) -> None:
    with Keeper(directory=tmp_path) as keeper:
        with reading(keeper, consumer="job") as found:
            read: list[int] = []
            for first in range(0, 60, 20):
                keeper.send(numbers(first, 10), numbers(first + 10, 10))
                read += found.take(10)
                found.source.release(found.source.position)
                keeper.restart()
            keeper.end()
            assert read + found.rest() == list(range(60))
            found.source.release(found.source.position)
        assert acknowledged(keeper, "job") == 6
