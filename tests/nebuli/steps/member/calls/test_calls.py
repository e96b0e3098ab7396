"""What a coordinator's process asks of a member's logs, over real channels, with the member's end of production."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path

import msgpack
import pyarrow as pa
import pytest

from nebuli.steps.coordinator.call_connection import CallConnection
from nebuli.steps.logs.output_log import OutputLog
from nebuli.steps.member.calls import call_messages as ask
from nebuli.steps.member.calls.call_inbox import CallInbox
from nebuli.steps.member.calls.output_pieces import PIECE_BYTES, OutputPieces
from nebuli.steps.member.inputs.step_inputs import WAITING_ROWS
from nebuli.steps.member.scaling.handover_sender import NotBetweenSteps
from nebuli.steps.member.scaling.layout import Layout
from nebuli.store import Store
from nebuli.store.errors import SinceMismatch, StepOutOfRange, StorageError
from netchannel import ReceiverServer, SenderServer
from tests.support.told_members import Members, pushed_query, rows
from tests.support.waiting import until_async

CIRCUIT = "c"


def ipc(batch: pa.RecordBatch) -> bytes:
    return bytes(batch.serialize())


@asynccontextmanager
async def called(
    folder: Path, waiting_bytes: int = 1 << 30
) -> AsyncIterator[tuple[Members, CallInbox, CallConnection]]:
    """A member that is alone, and a way to it."""
    async with (
        asyncio.timeout(60),
        Members(pushed_query(1), folder) as members,
        ReceiverServer("127.0.0.1:0", secret=members.secret) as receiver,
        SenderServer(secret=members.secret) as sender,
        asyncio.TaskGroup() as group,
        aclosing(CallConnection(CIRCUIT, 0, sender, receiver)) as line,
    ):
        (member,) = members.members
        inbox = CallInbox(member, CIRCUIT, waiting_bytes=waiting_bytes)
        group.create_task(inbox.serve("session", receiver.address))
        line.reach("session", member.receiver.address)
        yield members, inbox, line


async def test_so_many_bytes_wait_at_a_member_and_more_are_refused_at_once(tmp_path: Path) -> None:
    """Also of callers who are gone: they are forgotten where they came in, and not here."""
    async with called(tmp_path, waiting_bytes=10_000) as (members, inbox, line):
        schema = members.members[0].inputs["a"]
        await members.push_numbers(0, range(WAITING_ROWS))
        data = ipc(rows(schema, range(300)))
        assert 5_000 < len(data) < 10_000
        gone = asyncio.create_task(line.push("a", "gone", 0, data, 60.0))

        async def waits() -> bool:
            return inbox._waiting_bytes == len(data)

        await until_async(waits, "the first one waits")
        for _ in range(2):
            assert await line.push("a", "p", 0, data, 60.0) == ask.Crowded(len(data), 10_000)
            gone.cancel()
        assert await line.next_sequence("a", "p") == 0, "who asks does not wait behind pushes"


async def test_what_is_staged_waits_on_disk_and_counts_for_none_of_these(tmp_path: Path) -> None:
    """Or a batch of Spark larger than that would end its query whenever anybody else waits."""
    async with called(tmp_path, waiting_bytes=10_000) as (members, inbox, line):
        schema = members.members[0].inputs["a"]
        await members.push_numbers(0, range(WAITING_ROWS))
        data = ipc(rows(schema, range(300)))
        pieces = []
        for _ in range(2):
            answer = await line.stage("a", "spark", 0, data)
            assert isinstance(answer, ask.Staged)
            pieces.append(answer.piece)
        waiting = [
            asyncio.create_task(line.push("a", "p", 0, data, 60.0)),
            asyncio.create_task(line.push_staged("a", "spark", 0, pieces, 60.0)),
        ]

        async def waits() -> bool:
            return inbox._waiting_bytes == len(data)

        await until_async(waits, "the first one waits")
        found = await line.push_staged("a", "spark", 0, pieces, 0.1)
        assert found == ask.Full(WAITING_ROWS)
        assert inbox._waiting_bytes == len(data)
        for each in waiting:
            each.cancel()


async def test_rows_that_have_waited_for_a_process_find_their_input_held_and_wait_less_for_room(
    tmp_path: Path,
) -> None:
    """A new process of a member is told what is held before it is asked what the last one left."""
    async with (
        asyncio.timeout(60),
        Members(pushed_query(1), tmp_path) as members,
        ReceiverServer("127.0.0.1:0", secret=members.secret) as receiver,
        SenderServer(secret=members.secret) as sender,
        asyncio.TaskGroup() as group,
        aclosing(CallConnection(CIRCUIT, 0, sender, receiver)) as line,
    ):
        (member,) = members.members
        data = ipc(rows(member.inputs["a"], range(3)))
        group.create_task(CallInbox(member, CIRCUIT).serve("session", receiver.address))
        line.hold_from_the_first(frozenset("a"))
        pushing = asyncio.create_task(line.push("a", "p", 0, data, 3600.0))
        await asyncio.sleep(0)
        (question,) = line._questions.values()
        question._since -= 3599.9  # as if it had come so long ago
        line.reach("session", member.receiver.address)
        assert await pushing == ask.Full(0)
        await line.let_go("a")
        assert await line.push("a", "p", 0, data, 60.0) == ask.Logged(0)


async def test_whoever_waits_for_an_answer_has_one_when_nobody_is_asked_any_more(tmp_path: Path) -> None:
    """As where other members have taken the place of one that was away."""
    async with asyncio.timeout(60), ReceiverServer("127.0.0.1:0") as receiver, SenderServer() as sender:
        async with aclosing(CallConnection(CIRCUIT, 0, sender, receiver)) as line:
            asking = asyncio.create_task(line.next_sequence("a", "p"))

            async def waits() -> bool:
                return bool(line._questions)

            await until_async(waits, "the question is open")
        for asked in (asking, line.next_sequence("a", "p")):
            with pytest.raises(StorageError, match="is closed: ask again"):
                await asked


async def test_a_handover_that_is_refused_leaves_the_sinks_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is done before it is known that the member rests; and what was done is undone where it fails."""
    done: list[str] = []

    async def close_sinks(step: int) -> None:
        done.append(f"closed at {step}")

    async def open_sinks() -> None:
        done.append("opened")

    async def fail(*_: object) -> int:
        raise NotBetweenSteps("it was asked to continue")

    async with called(tmp_path) as (members, inbox, line):
        inbox.before_handover, inbox.after_handover = close_sinks, open_sinks
        layout = Layout.of(members.query.plan, ((),)).model_dump_json(by_alias=True).encode()
        with pytest.raises(StorageError, match="is not paused"):
            await line.hand_over(layout, ("127.0.0.1:1",))
        assert done == []
        monkeypatch.setattr(inbox._giving, "check_between_steps", lambda: None)
        monkeypatch.setattr(inbox._giving, "give", fail)
        with pytest.raises(StorageError, match="asked to continue"):
            await line.hand_over(layout, ("127.0.0.1:1",))
        assert done == [f"closed at {members.members[0].step}", "opened"]


async def test_what_is_not_known_of_a_step_is_said_with_what_is(tmp_path: Path) -> None:
    async with called(tmp_path) as (members, inbox, line):
        member = members.members[0]
        data = ipc(rows(member.inputs["a"], range(3)))
        assert await line.push("a", "p", 0, data, 1.0) == ask.Logged(0)
        await member.log.fix(0)
        assert await line.offsets(0) == {"a": (0, 1)}
        with pytest.raises(StepOutOfRange) as error:
            await line.offsets(1)
        assert (error.value.first, error.value.last) == (0, 1)
        assert not inbox.publishes
        await line.publish()
        assert inbox.publishes


async def test_a_malformed_question_or_answer_is_an_error_of_whoever_asked_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Bytes without a number have nobody who could be told: there it is logged."""
    encode_asked, encode_answer = ask.encode_asked, ask.encode_answer
    async with called(tmp_path) as (members, _, line):
        data = ipc(rows(members.members[0].inputs["a"], range(3)))

        monkeypatch.setattr(ask, "encode_asked", lambda at, _: msgpack.packb([at, "next", "a"]))
        with pytest.raises(StorageError, match=r"sent \d+ bytes that are not a message: 'next' has 1 fields"):
            await line.next_sequence("a", "p")
        monkeypatch.setattr(ask, "encode_asked", lambda at, _: b"\xc1")
        lost = asyncio.create_task(line.next_sequence("a", "p"))

        async def is_logged() -> bool:
            return "a request cannot be answered: the coordinator's process at 127.0.0.1" in caplog.text

        await until_async(is_logged, "a warning")
        assert not lost.done()
        lost.cancel()
        monkeypatch.setattr(ask, "encode_asked", encode_asked)
        monkeypatch.setattr(ask, "encode_answer", lambda at, _: msgpack.packb([at, "Next", "one"]))
        with pytest.raises(
            StorageError,
            match=r"member 0 at .* not a message: sequence of 'Next' is 'one', not a number of 64 bits",
        ):
            await line.next_sequence("a", "p")
        monkeypatch.setattr(ask, "encode_answer", lambda at, _: encode_answer(at, ask.Noted()))
        with pytest.raises(StorageError, match=r"answered Noted\(\), which does not match the request"):
            await line.next_sequence("a", "p")
        monkeypatch.setattr(ask, "encode_answer", encode_answer)
        assert await line.push("z", "p", 0, data, 1.0) == ask.CouldNot(
            "there is no input 'z' here: the inputs are a"
        )
        found = await line.push("a", "p", 0, data[:50], 1.0)
        assert isinstance(found, ask.CouldNot)
        with pytest.raises(StorageError, match="output none is at another member"):
            await anext(line.follow("none", 0, pa.schema([])))
        assert await line.push("a", "p", 0, data, 1.0) == ask.Logged(0)


async def test_what_fails_in_one_call_is_its_answer_and_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with called(tmp_path) as (members, _, line):
        log = members.members[0].log
        data = ipc(rows(members.members[0].inputs["a"], range(3)))
        with monkeypatch.context() as patched:
            patched.setattr(log, "push", broken)
            found = await line.push("a", "p", 0, data, 60.0)
        assert found == ask.CouldNot("FileNotFoundError: nobody expects this")
        assert "member 0 cannot answer Push" in caplog.text
        assert "Traceback" in caplog.text
        assert await line.push("a", "p", 0, data, 60.0) == ask.Logged(0)


async def broken(*_: object, **__: object) -> None:
    raise FileNotFoundError("nobody expects this")


async def test_an_output_is_followed_in_pieces_and_from_where_it_is_kept(tmp_path: Path) -> None:
    """A step of 5 MiB, then small ones; what was forgotten is said with the first that is kept."""
    async with called(tmp_path) as (members, _, line):
        log = members.members[0].outputs
        assert log is not None
        schema = log.schemas["rows"]
        large, small = rows(schema, range(5 * PIECE_BYTES // 24)), rows(schema, [1])
        await log.write(0, {"rows": large})
        spans = line.follow("rows", 0, schema)
        first = await anext(spans)
        assert (first.lower, first.upper) == (0, 1)
        assert len(first.updates) >= 5
        assert pa.Table.from_batches([each for _, each in first.updates]).equals(
            pa.Table.from_batches([large])
        )
        coming = asyncio.ensure_future(anext(spans))
        await log.write(1, {"rows": small})
        second = await coming
        assert [(step, each) for step, each in second.updates] == [(1, small)]
        await log.trim(1)
        with pytest.raises(SinceMismatch) as error:
            await anext(line.follow("rows", 0, schema))
        assert error.value.since == 1


async def test_pieces_are_those_of_what_was_read_once(tmp_path: Path) -> None:
    """Their number and where they end do not change while somebody asks for one after the other."""
    schema = pa.schema([("n", pa.int64()), ("_weight", pa.int64())])
    half = [range(at, at + PIECE_BYTES // 16) for at in (0, 1_000_000)]
    async with Store.at(tmp_path) as store:
        log = await OutputLog.open(store, "m", {"out": schema})
        pieces = OutputPieces(log)
        for step, numbers in enumerate(half):
            await log.write(
                step, {"out": pa.record_batch([list(numbers), [1] * len(numbers)], schema=schema)}
            )
        first = await pieces.piece("out", 0, 0)
        await log.write(2, {})
        found = [first, *[await pieces.piece("out", 0, number) for number in range(1, first.pieces)]]
    assert {(each.upper, each.pieces) for each in found} == {(first.upper, first.pieces)}
    assert all(sum(len(data) for _, data in each.updates) < PIECE_BYTES + 4096 for each in found)
    steps = [step for each in found for step, _ in each.updates]
    assert steps == sorted(steps)
