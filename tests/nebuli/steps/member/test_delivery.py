from __future__ import annotations

import asyncio
import errno
import os
import socket
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyarrow as pa
import pytest

from nebuli import Collections
from nebuli.connectors.errors import OutputChanged, OutputError, OutputForgotten, OutputGone
from nebuli.connectors.sinks.modes import AppendSink
from nebuli.dataflow.zset import weighted
from nebuli.steps.logs.output_log import OutputLog, SinkPosition
from nebuli.steps.member import delivery as module
from nebuli.steps.member.delivery import Delivery
from nebuli.store import Store
from nebuli.store.errors import BeyondEnd, SinceMismatch
from tests.support.waiting import until_async
from topology import CollectionSink, CsvSink, SinkConnector, SinkMode, TcpSink

SCHEMA = weighted(pa.schema([("n", pa.int64())]))


def row(number: int) -> pa.RecordBatch:
    return pa.record_batch([[number], [1]], schema=SCHEMA)


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    async with Store.at(tmp_path / "store") as store:
        yield store


@pytest.fixture
async def log(store: Store) -> OutputLog:
    return await OutputLog.open(store, "m", {"out": SCHEMA})


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "out.csv"


def growing(file: Path) -> CsvSink:
    return CsvSink(name="out", type="CSV", path=str(file), mode="append")


def numbers(file: Path) -> list[int]:
    header, *rows = file.read_text("utf-8").splitlines()
    assert header == '"n"'
    return [int(each) for each in rows]


async def write(log: OutputLog, *steps: int) -> None:
    for step in steps:
        await log.write(step, {"out": row(step)})


async def kept(delivery: Delivery, log: OutputLog, step: int) -> None:
    """Have a sink keep all below a step, which it may not have read yet."""

    async def there() -> bool:
        delivery.keep_soon()
        position = await (await log.delivered("out")).last()
        return position is not None and position.step == step

    await until_async(there, f"all below step {step} is kept")


async def begun(log: OutputLog, target: SinkConnector) -> Delivery:
    delivery = Delivery("out", target)
    await delivery.begin(log, SCHEMA)
    delivery.open_now()

    async def is_open() -> bool:
        assert delivery._working is not None
        return delivery._is_between or delivery._working.done()

    await until_async(is_open, "the sink is open, or cannot be opened")
    if not delivery._is_between:
        await delivery.failed()
    return delivery


async def test_a_sink_is_left_as_it_is_until_it_is_known_where_members_go_on(
    log: OutputLog, file: Path
) -> None:
    """Who is aborted before that has lost nothing, also where the log has, of which the file is the only copy."""
    file.write_text('"n"\n0\n1\n', "utf-8")
    delivery = Delivery("out", growing(file))
    await delivery.begin(log, SCHEMA)
    await write(log, 0)
    await delivery.abort("the members share no checkpoint")
    assert numbers(file) == [0, 1]
    again = await begun(log, growing(file))
    await again.finish(1)
    assert numbers(file) == [0]


async def test_a_sink_that_has_more_than_the_log_is_left_as_it_is(log: OutputLog, file: Path) -> None:
    await write(log, 0)
    await (await log.delivered("out")).keep(SinkPosition(2, "CSV in mode append", "", 2))
    file.write_text('"n"\n0\n1\n', "utf-8")
    with pytest.raises(
        BeyondEnd, match="the sink of out is at 2, but output log m ends at 1: the end of the log is lost"
    ):
        await begun(log, growing(file))
    assert numbers(file) == [0, 1]


async def test_who_gives_up_waits_until_a_sink_that_is_being_opened_is_open(
    log: OutputLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what the opening has made would stay behind."""
    began, go_on = threading.Event(), threading.Event()
    done: list[str] = []
    opening, giving_up = AppendSink.open, AppendSink.abort

    def open_late(sink: AppendSink, schema: pa.Schema) -> None:
        began.set()
        assert go_on.wait(60)
        opening(sink, schema)
        done.append("open")

    def abort(sink: AppendSink, reason: str) -> None:
        giving_up(sink, reason)
        done.append("given up")

    monkeypatch.setattr(AppendSink, "open", open_late)
    monkeypatch.setattr(AppendSink, "abort", abort)
    monkeypatch.setattr(module, "_LEAVE_S", 60.0)
    delivery = Delivery("out", growing(file))
    await delivery.begin(log, SCHEMA)
    delivery.open_now()
    await asyncio.to_thread(began.wait)
    asyncio.get_running_loop().call_later(0.2, go_on.set)
    await delivery.abort("the test is over")
    assert done == ["open", "given up"]


async def test_a_sink_holds_the_log_until_it_has_kept_what_was_written(log: OutputLog, file: Path) -> None:
    """DBSP-OUT-2: the log forgets a step when its consumer has it for good, and not when it has heard of it."""
    delivery = await begun(log, growing(file))
    await write(log, 0, 1, 2)
    await delivery.leave(2)
    await log.trim(2)
    first = log.first_of("out")
    assert first == 2
    await write(log, 3, 4)
    await log.trim(5)
    assert log.first_of("out") in (2, 3), "what was written since is not kept"
    await kept(delivery, log, 5)
    await log.trim(5)
    assert log.first_of("out") == 5
    await delivery.abort("the test is over")
    assert numbers(file) == [0, 1, 2, 3, 4]


async def test_what_steps_add_up_to_is_kept_instead_of_them(store: Store, log: OutputLog, file: Path) -> None:
    """Each step takes back the row of the one before: the log is trimmed, and the disk has what is left of it."""
    target = CsvSink(name="out", type="CSV", path=str(file), mode="final")
    payload = 1 << 10
    for last in (400, 800):
        delivery = await begun(log, target)
        for step in range(log.last, last):
            changes = [(step * payload + each, 1) for each in range(payload)]
            changes += [(number - payload, -1) for number, _ in changes if step]
            columns = map(list, zip(*changes, strict=True))
            await log.write(step, {"out": pa.record_batch([*columns], schema=SCHEMA)})
            if step % 10 == 0:
                delivery.keep_soon()
        await delivery.leave(last)
        await log.trim(last)
        assert log.first_of("out") == last
        await delivery.abort("killed")
        assert not file.exists()
    delivery = await begun(log, target)
    await delivery.finish(800)
    assert numbers(file) == list(range(799 * payload, 800 * payload))
    net = await store.open_shard("m/net/out")
    await net.compact(full=True)
    assert sum(size for _, size in net.stored) < 64 * payload


async def test_a_sink_that_cannot_go_on_has_all_steps_kept(log: OutputLog, file: Path) -> None:
    """In mode final also, as long as no row was taken back: what the steps add up to would be no less."""
    target = CsvSink(name="out", type="CSV", path=str(file), mode="final")
    for last in (3, 5):
        delivery = await begun(log, target)
        await write(log, *range(log.last, last))
        delivery.keep_soon()
        await delivery.finish(last)
        await log.trim(last)
        assert log.first_of("out") == 0
        assert numbers(file) == list(range(last))


async def test_a_sink_that_has_to_begin_at_a_forgotten_step_is_refused(log: OutputLog, file: Path) -> None:
    delivery = await begun(log, growing(file))
    await write(log, 0, 1, 2)
    await delivery.finish(3)
    await log.trim(3)
    target = CsvSink(name="out", type="CSV", path=str(file), mode="changes")
    with pytest.raises(
        OutputForgotten, match=r"\(CSV in mode changes\) must be written from step 0 on"
    ) as raised:
        await begun(log, target)
    assert raised.value.first == 3
    assert numbers(file) == [0, 1, 2]


async def test_a_disk_that_is_full_keeps_no_position_and_no_row_is_lost(
    log: OutputLog, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows that the disk did not take come again, when there is room."""
    delivery = await begun(log, growing(file))
    await write(log, 0, 1)
    await delivery.leave(2)
    await write(log, 2, 3)
    with monkeypatch.context() as full:
        full.setattr("nebuli.connectors.sinks.outputs.os.fsync", no_space)
        delivery.keep_soon()
        with pytest.raises(OutputError, match=r"out\.csv cannot be written: No space left on device"):
            await asyncio.wait_for(delivery.failed(), 60)
        await delivery.abort("the disk is full")
    await log.trim(4)
    assert log.first_of("out") == 2
    file.write_bytes(file.read_bytes()[:-1] + b"9" * 100)  # what had not been synced may be anything
    again = await begun(log, growing(file))
    await again.finish(4)
    assert numbers(file) == [0, 1, 2, 3]


def no_space(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


async def test_an_older_log_has_its_sink_written_anew_and_goes_on_from_then_on(
    store: Store, file: Path
) -> None:
    """A folder of before there were positions: its shards have no holds, and all steps."""
    shard = await store.create_shard("m/output/out", SCHEMA, keeps="updates")
    for step in range(3):
        await shard.compare_and_append([(step, row(step))], step, step + 1)
    file.write_text("what a run of before has written", "utf-8")
    log = await OutputLog.open(store, "m", {"out": SCHEMA})
    delivery = await begun(log, growing(file))
    await delivery.finish(3)
    assert numbers(file) == [0, 1, 2]
    assert log.first_of("out") == 0, "nothing is forgotten that was not trimmed"
    await log.trim(3)
    with pytest.raises(SinceMismatch):
        await log.read("out", 2)


async def test_over_tcp_a_later_run_goes_on_where_the_other_machine_has_the_rows(log: OutputLog) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        target = TcpSink(
            name="out", type="TCP", address=f"127.0.0.1:{server.getsockname()[1]}", mode="append"
        )
        delivery = await begun(log, target)
        first, _ = server.accept()
        await write(log, 0, 1)
        await delivery.leave(2)
        await write(log, 2)
        assert await asyncio.to_thread(received, first, 3) == ["0", "1", "2"]
        await delivery.abort("killed")
        await write(log, 3)
        again = await begun(log, target)
        second, _ = server.accept()
        await again.finish(4)
        rest = await asyncio.to_thread(received, second, None)
        assert rest in (["2", "3"], ["3"])
        first.close()
        second.close()


def received(connection: socket.socket, lines: int | None) -> list[str]:
    """So many lines, or all to the end."""
    found = b""
    while (lines is None or found.count(b"\n") < lines) and (piece := connection.recv(1 << 16)):
        found += piece
    return found.decode().splitlines()


async def test_how_much_is_kept_for_programs_is_counted_from_the_newest(log: OutputLog) -> None:
    """DBSP-OUT-2: a retention setting, in bytes; at least so many, if there are."""
    wide = pa.record_batch([list(range(1 << 14)), [1, 2] * (1 << 13)], schema=SCHEMA)
    for step in range(8):
        await log.write(step, {"out": wide})
    await log.trim(8, keep_bytes=1 << 30)
    assert log.first_of("out") == 0
    await log.trim(8, keep_bytes=wide.nbytes * 5 // 2)
    assert log.first_of("out") == 5
    await log.trim(6, keep_bytes=0)
    assert log.first_of("out") == 6, "steps that may be repeated stay"


async def test_what_comes_behind_a_result_that_counts_is_in_the_next_one(log: OutputLog, file: Path) -> None:
    """Members that had stopped go on: a file that grows has it below, and each row once."""
    delivery = await begun(log, growing(file))
    await write(log, 0, 1)
    await delivery.finish(2)
    await delivery.finish(2)
    assert numbers(file) == [0, 1]
    await write(log, 2)
    await delivery.finish(3)
    assert numbers(file) == [0, 1, 2]
    assert delivery.rows == 3
    again = await begun(log, growing(file))
    assert again.rows == 3, "what a run before has given out counts"
    await write(log, 3)
    await again.finish(4)
    assert again.rows == 4


def cut(file: Path) -> None:
    os.truncate(file, file.stat().st_size - 1)


def empty(file: Path) -> None:
    os.truncate(file, 0)


def extend(file: Path) -> None:
    file.write_bytes(file.read_bytes() + b"7\n")


def replace(file: Path) -> None:
    file.rename(file.with_name("rotated"))
    file.write_text("another file\n", "utf-8")


@pytest.mark.parametrize("lose", [empty, Path.unlink])
async def test_a_lost_file_is_written_whole_from_steps_that_members_trim_meanwhile(
    log: OutputLog, file: Path, lose: Callable[[Path], None]
) -> None:
    """Members trim as soon as they run, and the sink is opened a moment later."""
    first = await begun(log, growing(file))
    await write(log, 0, 1, 2)
    await first.finish(3)
    lose(file)
    delivery = Delivery("out", growing(file))
    await delivery.begin(log, SCHEMA)
    await log.trim(3)
    await delivery.finish(3)
    assert numbers(file) == [0, 1, 2]
    await log.trim(3)
    assert log.first_of("out") == 3, "it has had them"


@pytest.mark.parametrize("lose", [empty, Path.unlink])
async def test_a_lost_file_whose_steps_are_forgotten_is_an_error(
    log: OutputLog, file: Path, lose: Callable[[Path], None]
) -> None:
    """An empty file may be a log rotation's: rows would be missing, and no one would know."""
    first = await begun(log, growing(file))
    await write(log, 0, 1, 2)
    await first.finish(3)
    await log.trim(3)
    there = file.read_bytes()
    lose(file)
    with pytest.raises(
        OutputGone,
        match=rf"{file} is (empty|gone), but {len(there)} bytes had been written to it; it was the only copy of the "
        r"output of the steps below 3, because the state no longer keeps this output .*: put it back unchanged, or "
        "start again with another state folder",
    ):
        await begun(log, growing(file))
    assert not file.exists() or not file.read_bytes()
    file.write_bytes(there)
    again = await begun(log, growing(file))
    await write(log, 3)
    await again.finish(4)
    assert numbers(file) == [0, 1, 2, 3]


@pytest.mark.parametrize("damage", [cut, empty, extend, replace, Path.unlink])
@pytest.mark.parametrize("mode", ["append", "changes"])
async def test_a_file_that_is_damaged_while_it_runs_fails_the_query(
    log: OutputLog, file: Path, damage: Callable[[Path], None], mode: SinkMode
) -> None:
    """With the next rows, the next checkpoint, or at the end; and its position stays the one before the damage."""
    target = CsvSink(name="out", type="CSV", path=str(file), mode=mode)
    for at in ("rows", "checkpoint", "end"):
        last = log.last
        if file.exists():
            file.unlink()
        delivery = await begun(log, target)
        await write(log, last)
        await delivery.leave(last + 1)
        whole = file.read_bytes()
        if at == "checkpoint":
            await write(log, last + 1)
            await delivery._reach(last + 2)
        damage(file)
        if at == "rows":
            await write(log, last + 1)
        elif at == "checkpoint":
            delivery.keep_soon()
        fails = delivery.finish(last + 1) if at == "end" else delivery.failed()
        with pytest.raises(OutputChanged, match=rf"{file} was .* while it was written"):
            await asyncio.wait_for(fails, 60)
        await delivery.abort("damaged")
        position = await (await log.delivered("out")).last()
        assert position is not None
        assert (position.step, f'"size": {len(whole)},' in position.text) == (last + 1, True)


async def test_who_writes_a_collection_anew_and_is_killed_goes_on_with_that(
    log: OutputLog, tmp_path: Path
) -> None:
    """As who writes it for the first time: else what was written anew would be written again."""
    target = CollectionSink.model_validate(
        {"name": "out", "type": "Collection", "store": str(tmp_path / "kept"), "collection": "c"}
    )
    async with Collections(tmp_path / "kept") as collections:

        async def has_two() -> bool:
            return (await collections.snapshot("c")).num_rows == 2

        await collections.create("c", pa.schema([("n", pa.int64())]))
        await write(log, 0, 1)
        delivery = await begun(log, target)
        await kept(delivery, log, 2)
        await delivery.abort("the test goes on")
        await collections.drop("c")
        await collections.create("c", pa.schema([("n", pa.int64())]))
        killed = await begun(log, target)
        await until_async(has_two, "all is written anew")
        await killed._stop()
        await asyncio.to_thread(killed._sink.abort, "killed")
        again = await begun(log, target)
        await write(log, 2)
        await again.finish(3)
        assert sorted((await collections.snapshot("c"))["n"].to_pylist()) == [0, 1, 2]
