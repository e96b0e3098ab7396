"""A stream is read from a real server of NATS, which is killed, held, and drops what is too old."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from typing import Any

import nats
import pytest
from nats.js import JetStreamContext

from nebuli.ingestion.definition import NatsOrigin
from nebuli.ingestion.errors import AddressGone, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import Addresses
from nebuli.ingestion.readers.nats_stream import NatsStream
from nebuli.ingestion.source_reader import SourceReader
from nebuli.ingestion.testing import Expected, ReaderConformance
from tests.support.nats import NatsServer, nats_server

pytestmark = pytest.mark.processes

_NUMBERS = count(1)
_LIMIT_S = 20.0

Row = tuple[int, str, bytes]


@pytest.fixture(scope="module")
def running() -> Iterator[NatsServer]:
    with nats_server() as started:
        yield started


class Stream:
    """A stream with subjects of its own."""

    def __init__(self, started: NatsServer) -> None:
        self.server, self.name = started, f"stream_{next(_NUMBERS)}"

    @asynccontextmanager
    async def asked(self) -> AsyncIterator[JetStreamContext]:
        connection = await nats.connect(self.server.url, max_reconnect_attempts=1, reconnect_time_wait=0.05)
        try:
            yield connection.jetstream()
        finally:
            await connection.close()

    async def make(self, **settings: Any) -> None:
        async with self.asked() as stream:
            await stream.add_stream(name=self.name, subjects=[f"{self.name}.>"], **settings)

    async def delete(self) -> None:
        async with self.asked() as stream:
            await stream.delete_stream(self.name)

    async def publish(self, *payloads: bytes, subject: str = "a") -> None:
        async with self.asked() as stream:
            for each in payloads:
                await stream.publish(f"{self.name}.{subject}", each)

    async def first(self) -> int:
        async with self.asked() as stream:
            return (await stream.stream_info(self.name)).state.first_seq

    async def purge(self, **which: Any) -> None:
        async with self.asked() as stream:
            await stream.purge_stream(self.name, **which)

    def reader(self, **others: Any) -> NatsStream:
        given = {"type": "NATS", "url": self.server.url, "stream": self.name, **others}
        return NatsStream(NatsOrigin.model_validate(given), name="orders")


@pytest.fixture
async def stream(running: NatsServer) -> Stream:
    made = Stream(running)
    await made.make()
    return made


@asynccontextmanager
async def opened(reader: NatsStream, at: int | None = None) -> AsyncIterator[NatsStream]:
    try:
        await reader.open({} if at is None else {"": at})
        yield reader
    finally:
        await reader.close()


async def to_end(reader: NatsStream, at: int = 0) -> tuple[list[Row], int]:
    """All that there is now from an address on, and the address behind it."""
    end, upper, found = (await reader.ends())[""], at, list[Row]()
    async with asyncio.timeout(_LIMIT_S):
        while upper < end:
            messages = await reader.next()
            upper = messages.upper
            found += zip(
                messages.addresses.tolist(),
                messages.rows.column("subject").to_pylist(),
                messages.rows.column("payload").to_pylist(),
                strict=True,
            )
    return found, upper


class TestConformance(ReaderConformance):
    """It is a reader as all others. ST-ING-4, ST-ING-5, ST-ING-6."""

    @pytest.fixture
    def make(self, stream: Stream) -> Callable[[], SourceReader]:
        return stream.reader

    @pytest.fixture
    def add(self, stream: Stream) -> Callable[[], Awaitable[list[Expected]]]:
        sequences = count(1)

        async def added() -> list[Expected]:
            mine = [next(sequences) for _ in range(3)]
            await stream.publish(*(b"%d" % each for each in mine))
            return [
                Expected("", each, {"payload": b"%d" % each, "subject": f"{stream.name}.a"}) for each in mine
            ]

        return added

    @pytest.fixture
    def trim(self, stream: Stream) -> Callable[[], Awaitable[Addresses]]:
        async def trimmed() -> Addresses:
            await stream.purge(seq=3)
            return {"": 2}

        return trimmed

    @pytest.fixture
    def away(self, stream: Stream) -> list[Callable[[], SourceReader]]:
        return [lambda: stream.reader(url="nats://127.0.0.1:1"), lambda: stream.reader(stream="none")]


class TestConformanceOfASubject(TestConformance):
    """It is one where others have messages between its own, too."""

    @pytest.fixture
    def make(self, stream: Stream) -> Callable[[], SourceReader]:
        return lambda: stream.reader(subject=f"{stream.name}.a")

    @pytest.fixture
    def add(self, stream: Stream) -> Callable[[], Awaitable[list[Expected]]]:
        sequences = count(1)

        async def added() -> list[Expected]:
            expected = []
            for _ in range(3):
                next(sequences)
                await stream.publish(b"other", subject="b")
                mine = next(sequences)
                await stream.publish(b"%d" % mine)
                row = {"payload": b"%d" % mine, "subject": f"{stream.name}.a"}
                expected.append(Expected("", mine, row))
            next(sequences)
            await stream.publish(b"other", subject="b")
            return expected

        return added

    @pytest.fixture
    def trim(self, stream: Stream) -> Callable[[], Awaitable[Addresses]]:
        async def trimmed() -> Addresses:
            await stream.purge(seq=4)
            return {"": 2}

        return trimmed


async def test_nothing_is_below_the_first_sequence(stream: Stream) -> None:
    await stream.publish(b"a", b"b")
    for at in (0, 1):
        async with opened(stream.reader(), at) as reader:
            messages = await reader.next()
            assert (messages.lower, messages.upper, messages.addresses.tolist()) == (at, 3, [1, 2])


async def test_what_was_deleted_between_others_is_no_gap(stream: Stream) -> None:
    await stream.publish(b"a", b"b", b"c", b"d", b"e")
    async with stream.asked() as asked:
        for sequence in (2, 3, 5):
            await asked.delete_msg(stream.name, sequence)
    async with opened(stream.reader()) as reader:
        found, upper = await to_end(reader)
        assert [(at, payload) for at, _, payload in found] == [(1, b"a"), (4, b"d")]
        assert upper == 6
        await stream.publish(b"f")
        assert (await to_end(reader, upper))[0] == [(6, f"{stream.name}.a", b"f")]
    for at in (2, 3, 4):
        async with opened(stream.reader(), at) as reader:
            assert [at for at, _, _ in (await to_end(reader))[0]] == [4, 6]


async def test_it_goes_on_over_what_does_not_match(stream: Stream) -> None:
    async with opened(stream.reader(subject=f"{stream.name}.b.*")) as reader:
        await stream.publish(b"x", b"y")
        found, upper = await to_end(reader)
        assert (found, upper) == ([], 3)
        await stream.publish(b"z", subject="b.c")
        assert (await to_end(reader, upper))[0] == [(3, f"{stream.name}.b.c", b"z")]


async def test_many_messages_are_read_as_they_are(stream: Stream) -> None:
    """Of all sizes, with headers like those of the server's own."""
    payloads = [b"%d" % each * (each % 700) for each in range(12_000)]
    async with stream.asked() as asked:
        for begin in range(0, len(payloads), 500):
            for each in payloads[begin : begin + 500]:
                await asked.publish_async(f"{stream.name}.a", each, headers={"Status": "404"})
            await asked.publish_async_completed()
    async with opened(stream.reader()) as reader:
        found, _ = await to_end(reader)
    assert [(at, payload) for at, _, payload in found] == list(enumerate(payloads, 1))


async def test_what_was_dropped_as_it_was_read_is_gone_and_not_left_out(running: NatsServer) -> None:
    """With both numbers; ST-ING-6."""
    stream = Stream(running)
    await stream.make(max_msgs=10)
    await stream.publish(b"first")
    async with opened(stream.reader()) as reader:
        assert len((await to_end(reader))[0]) == 1
        pull = reader._pull
        assert pull is not None
        await pull.close()  # so that it hears no more before all of these are there
        await stream.publish(*(b"%d" % each for each in range(30)))
    with pytest.raises(AddressGone, match=r"at 2, is gone: the stream begins at 22"):
        await stream.reader().open({"": 2})
    for at in range(22, 33):
        async with opened(stream.reader(), at) as reader:
            assert [at for at, _, _ in (await to_end(reader, at))[0]] == list(range(at, 32))


@pytest.mark.long
async def test_a_reader_that_limits_overtake_is_told_so_or_has_everything(running: NatsServer) -> None:
    """Whatever it gives has no gap. ST-ING-6."""
    for _ in range(10):
        stream = Stream(running)
        await stream.make(max_msgs=50, storage="memory")
        async with opened(stream.reader(), 1) as reader, stream.asked() as asked:

            async def publish(asked: JetStreamContext, name: str) -> None:
                for _ in range(40):
                    for _ in range(100):
                        await asked.publish_async(f"{name}.a", b"x" * 100)
                    await asked.publish_async_completed()

            publishing = asyncio.create_task(publish(asked, stream.name))
            sequences, said = list[int](), ""
            try:
                async with asyncio.timeout(_LIMIT_S):
                    while not sequences or sequences[-1] < 4000:
                        sequences += (await reader.next()).addresses.tolist()
            except AddressGone as error:
                said = str(error)
            await publishing
            assert sequences == list(range(1, len(sequences) + 1))
            assert len(sequences) == 4000 or f"at {len(sequences) + 1}, is gone" in said
        await stream.delete()


async def test_another_stream_of_the_name_is_not_taken_for_it(stream: Stream) -> None:
    await stream.publish(b"a", b"b", b"c")
    async with opened(stream.reader()) as reader:
        await to_end(reader)
        await stream.delete()
        await stream.make()
        await stream.publish(b"d")
        with pytest.raises(AddressGone, match="another one of the same name"):
            await to_end(reader, 1)
    with pytest.raises(AddressGone, match="at 4, is gone: the stream ends at 2"):
        await stream.reader().open({"": 4})


async def test_what_is_released_is_purged_if_the_definition_says_so(stream: Stream) -> None:
    """Else the stream is left alone. ST-ING-3."""
    async with opened(stream.reader(purge=True)) as reader, opened(stream.reader()) as careful:
        upper = 1
        for turn in range(5):
            await stream.publish(*(b"%d" % each for each in range(10)))
            found, upper = await to_end(reader, upper)
            assert len(found) == 10
            await careful.release({"": upper})
            assert await stream.first() == max(1, turn * 10)
            await reader.release({"": upper})
            assert await stream.first() == upper - 1
            await reader.release({"": 2})  # it has been
            assert await stream.first() == upper - 1
        async with opened(stream.reader(), upper) as again:
            await stream.publish(b"next")
            assert [at for at, _, _ in (await to_end(again, upper))[0]] == [upper]


async def test_a_release_leaves_what_shows_that_nothing_is_gone(stream: Stream) -> None:
    """The last message before; where that was deleted, a later release purges more."""
    await stream.publish(*(b"%d" % each for each in range(6)))
    async with stream.asked() as asked, opened(stream.reader(purge=True)) as reader:
        await asked.delete_msg(stream.name, 4)
        await reader.release({"": 5})
        assert await stream.first() == 1
        await reader.release({"": 6})
        assert await stream.first() == 5
        await reader.release({"": 100})
        assert await stream.first() == 5
    async with opened(stream.reader(), 6) as reader:
        assert [at for at, _, _ in (await to_end(reader, 6))[0]] == [6]


async def test_two_read_the_same_while_a_third_releases(stream: Stream) -> None:
    """However they are cut. ST-ING-6."""
    async with (
        opened(stream.reader()) as one,
        opened(stream.reader()) as two,
        opened(stream.reader(purge=True)) as third,
        asyncio.timeout(_LIMIT_S),
    ):
        found: dict[str, list[Any]] = {"one": [], "two": []}
        uppers = {"one": 1, "two": 1}

        async def read(reader: NatsStream, name: str, pause_s: float) -> None:
            while len(found[name]) < 2000:
                messages = await reader.next()
                assert messages.lower == uppers[name]
                uppers[name] = messages.upper
                found[name] += zip(messages.addresses.tolist(), messages.rows.to_pylist(), strict=True)
                await asyncio.sleep(pause_s)

        async def release() -> None:
            while True:
                await third.release({"": min(uppers.values())})
                await asyncio.sleep(0.01)

        releasing = asyncio.create_task(release())
        await asyncio.gather(
            read(one, "one", 0),
            read(two, "two", 0.02),
            *(stream.publish(*(b"%d" % each for each in range(500))) for _ in range(4)),
        )
        await asyncio.sleep(0.1)
        releasing.cancel()
        await asyncio.wait([releasing])
        assert await stream.first() == 2000
    assert found["one"] == found["two"]
    assert [at for at, _ in found["one"]] == list(range(1, 2001))


async def test_a_server_that_is_killed_is_away_and_nothing_is_lost() -> None:
    """It is said within seconds; a new reader goes on where the last one was. ST-ING-2."""
    with nats_server() as started:
        stream = Stream(started)
        await stream.make()
        found, upper = list[Row](), 1
        for turn in range(3):
            async with opened(stream.reader(), upper) as reader:
                await stream.publish(*(b"%d" % (turn * 3 + each) for each in range(3)))
                more, upper = await to_end(reader, upper)
                found += more
                waiting = asyncio.create_task(reader.next())
                await asyncio.sleep(0.1)
                await asyncio.to_thread(started.kill)
                async with asyncio.timeout(5):
                    with pytest.raises(SourceAway):
                        await waiting
                    with pytest.raises(SourceAway):
                        await reader.ends()
            async with asyncio.timeout(5):
                with pytest.raises(SourceAway):
                    await stream.reader().open({"": upper})
            await asyncio.to_thread(started.start)
        async with opened(stream.reader()) as again:
            assert (await to_end(again))[0] == found
    assert [(at, payload) for at, _, payload in found] == [(at + 1, b"%d" % at) for at in range(9)]


@pytest.mark.long
async def test_whatever_is_killed_as_it_is_read_and_written_nothing_is_lost_or_doubled() -> None:
    """ST-ING-2, ST-ING-4; each time some is read before the server is killed."""
    with nats_server() as started:
        stream = Stream(started)
        await stream.make()
        sequences, upper, is_over = list[int](), 1, asyncio.Event()
        loop = asyncio.get_running_loop()

        async def write() -> None:
            while not is_over.is_set():
                with suppress(nats.errors.Error, OSError):
                    async with stream.asked() as asked:
                        while not is_over.is_set():
                            await asked.publish(f"{stream.name}.a", b"x", timeout=0.5)

        async def read(reader: NatsStream, turn: int) -> None:
            nonlocal upper
            begun, is_soon = len(sequences), False
            while True:
                messages = await reader.next()
                assert messages.lower == upper
                upper = messages.upper
                sequences.extend(messages.addresses.tolist())
                if not is_soon and len(sequences) >= begun + 20:
                    is_soon = True
                    loop.call_later(0.07 * turn, started.kill)

        writing = asyncio.create_task(write())
        async with asyncio.timeout(60):
            for turn in range(6):
                async with opened(stream.reader(), upper) as reader:
                    with pytest.raises(SourceAway):
                        await read(reader, turn)
                await asyncio.to_thread(started.start)
            is_over.set()
            await writing
            async with opened(stream.reader(), upper) as reader:
                sequences += [at for at, _, _ in (await to_end(reader, upper))[0]]
        assert len(sequences) > 100
        async with opened(stream.reader()) as reader:
            assert (
                [at for at, _, _ in (await to_end(reader))[0]]
                == sequences
                == list(range(1, len(sequences) + 1))
            )


@pytest.mark.long
async def test_a_server_that_stands_still_is_away() -> None:
    with nats_server() as started:
        stream = Stream(started)
        await stream.make()
        async with opened(stream.reader()) as reader:
            started.hold()
            try:
                async with asyncio.timeout(15):
                    with pytest.raises(SourceAway):
                        await reader.next()
            finally:
                started.hold(go_on=True)


@pytest.mark.long
async def test_a_reader_that_idles_is_not_told_that_the_server_is_away(stream: Stream) -> None:
    """Nor one whose process does something else for longer than a server may be silent."""
    async with opened(stream.reader()) as reader:
        waiting = asyncio.create_task(reader.next())
        await asyncio.sleep(7)
        assert not waiting.done()
        time.sleep(6)  # noqa: ASYNC251 - that is what is shown
        await stream.publish(b"late")
        assert (await waiting).rows.num_rows == 1


async def test_a_reader_that_is_cancelled_as_an_answer_comes_ends(
    stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before Python 3.12 the library then has the answer, and not that it was cancelled."""
    await stream.make()
    wait_for, cancelled = asyncio.wait_for, 0

    async def as_it_comes(answer: asyncio.Future[Any], within_s: float) -> Any:
        def cancel(_: asyncio.Future[Any]) -> None:
            nonlocal cancelled
            cancelled += task.cancel()

        if asyncio.current_task() is task:
            answer.add_done_callback(cancel)
        return await wait_for(answer, within_s)

    async def read() -> None:
        while True:
            await reader.next()

    reader = stream.reader()
    try:
        await reader.open({})
        task = asyncio.create_task(read())
        monkeypatch.setattr(asyncio, "wait_for", as_it_comes)
        done, _ = await asyncio.wait([task], timeout=5)
    finally:
        monkeypatch.setattr(asyncio, "wait_for", wait_for)
        task.cancel()
        await reader.close()
    assert (done, task.cancelled(), cancelled) == ({task}, True, 1)


async def test_a_stream_that_cannot_be_read_again_is_not_usable(running: NatsServer) -> None:
    for settings, said in (
        ({"retention": "workqueue"}, r"retention is workqueue, .*; expected 'limits'"),
        ({"retention": "interest"}, r"retention is interest, .*; expected 'limits'"),
        ({"max_msgs_per_subject": 1}, "keeps 1 messages of each subject"),
        ({"allow_rollup_hdrs": True}, r"delete .*allow_rollup_hdrs"),
        ({"allow_msg_ttl": True}, r"delete .*allow_msg_ttl"),
        ({"deny_purge": True}, "cannot be purged"),
    ):
        stream = Stream(running)
        await stream.make(**settings)
        with pytest.raises(SourceUnusable, match=said):
            await stream.reader(purge="deny_purge" in settings).open({})
    stream = Stream(running)
    await stream.make()
    async with opened(stream.reader()) as reader, stream.asked() as asked:
        await asked.update_stream(name=stream.name, subjects=[f"{stream.name}.>"], max_msgs_per_subject=1)
        await stream.publish(b"one", b"two")
        with pytest.raises(SourceUnusable, match="keeps 1 messages of each subject"):
            await asyncio.wait_for(reader.next(), _LIMIT_S)


async def test_without_its_library_it_says_which_one(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nats", None)
    monkeypatch.delitem(sys.modules, "nebuli.ingestion.readers.nats_pull")
    with pytest.raises(SourceUnusable, match=r"pip install 'nebuli\[nats\]'"):
        await stream.reader().open({})


async def test_a_server_without_what_is_needed_says_so(stream: Stream) -> None:
    with pytest.raises(SourceUnusable, match="stream not found"):
        await stream.reader(stream="none").open({})
    with pytest.raises(SourceAway, match=r"at 127\.0\.0\.1:1 does not answer"):
        await stream.reader(url="nats://me:secret@127.0.0.1:1").open({})
    with pytest.raises(SourceUnusable, match="invalid stream name"):
        await stream.reader(stream="a.b").open({})
