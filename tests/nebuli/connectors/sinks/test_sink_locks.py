"""One writer at a time for a file: who has it is named, and who is dead has nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import grpc
import pytest

from nebuli.connectors.errors import OutputError, SinkInUse
from nebuli.connectors.sinks.overwrites import SinkIsSource
from nebuli.connectors.sinks.sink_locks import note_reads, take_all
from nebuli.rpc import worker_pb2 as wire
from placement.plan import Fragment
from tests.nebuli.connectors.sinks.test_overwrites import OTHER, SAME
from tests.nebuli.node.service.test_service import Worker, refusal
from tests.support.waiting import wait_for


def fragment(path: str | Path, node: str = "127.0.0.1:1", **target: Any) -> dict[str, Any]:
    """One that writes to a file, and waits for rows that nobody sends."""
    columns = [{"name": "n", "type": "int64"}]
    source = {
        "id": "in",
        "type": "network_source",
        "channel": f"{node}/rows",
        "address": node,
        "schema": columns,
    }
    sink = {"name": "out", "type": "CSV", "path": str(path), **target}
    operators = [source, {"id": "out", "type": "sink", "input": "in", "sink": "out", "target": sink}]
    return {"id": "copy/out", "node": node, "operators": operators}


def writes(path: str | Path, **target: Any) -> Fragment:
    return Fragment.model_validate(fragment(path, **target))


def test_a_file_has_one_writer_by_whatever_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "other.csv").symlink_to("out.csv")
    monkeypatch.chdir(tmp_path)
    lock, note = take_all(writes("out.csv"), "first")
    for name in (tmp_path / "out.csv", "link/out.csv", "other.csv", f"link/../{tmp_path.name}/out.csv"):
        with pytest.raises(SinkInUse) as caught:
            take_all(writes(name, type="Parquet"), "second")
        assert str(caught.value) == (
            f"{name} is in use as a sink by query first, fragment copy/out at 127.0.0.1:1, as {tmp_path / 'out.csv'}: "
            "stop that query, wait for its end, or give this sink another path"
        )
    lock.release()
    note.release()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["link", "other.csv"]
    for each in take_all(writes("other.csv"), "second"):
        each.release()


def test_a_fragment_does_not_write_over_what_it_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.csv").write_text("n\n1\n", "utf-8")
    with pytest.raises(SinkIsSource, match=r"^\./in.csv, which is the same file as in.csv, is read by"):
        take_all(reads_and_writes("in.csv", "./in.csv"), "first")
    assert [each.name for each in tmp_path.iterdir()] == ["in.csv"]


def reads_and_writes(read: str, *written: str) -> Fragment:
    """One that reads a file, and writes another one, and late rows."""
    data = fragment(written[0])
    physical = {"logical": "numbers", "type": "CSV", "path": read}
    schema = data["operators"][0]["schema"]
    source = {"id": "file", "type": "source", "logical": "numbers", "schema": schema, "physical": physical}
    data["operators"][1:1] = [source, {"id": "both", "type": "union", "inputs": ["in", "file"]}]
    if late := written[1:]:
        window = {"type": "window", "time": "n", "size": "1 minute", "late": late[0]}
        data["operators"][3:3] = [window | {"id": "w", "input": "both"}]
    return Fragment.model_validate(data)


@pytest.mark.parametrize("late", [False, True], ids=["sink", "late"])
@pytest.mark.parametrize(("written", "read"), SAME)
def test_no_sink_writes_over_what_another_query_reads(
    here: Path, monkeypatch: pytest.MonkeyPatch, written: str, read: str, late: bool
) -> None:
    """By its note, which goes with it."""
    monkeypatch.chdir(here)
    before = {each: each.read_bytes() for each in here.rglob("*") if each.is_file()}
    locks = take_all(reads_and_writes(read, "out.csv"), "first")
    monkeypatch.chdir("/")
    paths = ("/dev/null", str(here / written)) if late else (str(here / written),)
    with pytest.raises(SinkInUse) as caught:
        take_all(reads_and_writes("/none.csv", *paths), "second")
    assert str(caught.value) == (
        f"{here / written} is read by query first, fragment copy/out at 127.0.0.1:1, as {here / read}: "
        "stop that query, wait for its end, or give this sink another path"
    )
    for each in locks:
        each.release()
    assert {each: each.read_bytes() for each in here.rglob("*") if each.is_file()} == before
    for each in take_all(reads_and_writes("/none.csv", *paths), "second"):
        each.release()


@pytest.mark.parametrize(("written", "read"), OTHER)
def test_a_sink_may_write_next_to_what_another_query_reads(
    here: Path, monkeypatch: pytest.MonkeyPatch, written: str, read: str
) -> None:
    monkeypatch.chdir(here)
    locks = []
    for fragment_, query in ((reads_and_writes(read, "out.csv"), "first"), (writes(written), "second")):
        locks.extend(take_all(fragment_, query))
    for each in locks:
        each.release()


def test_two_queries_do_not_write_to_hard_links_of_a_file(here: Path) -> None:
    locks = take_all(writes(here / "hard.csv"), "first")
    with pytest.raises(SinkInUse, match=f"in use as a sink by query first, .* as {here}/hard.csv: stop"):
        take_all(writes(here / "data" / "in.csv"), "second")
    for each in locks:
        each.release()


def test_a_query_does_not_read_what_another_fragment_of_it_writes(here: Path) -> None:
    """In whichever order they are started; another query may read it, and has what is there."""
    locks = take_all(writes(here / "hard.csv"), "query")
    with pytest.raises(
        SinkInUse, match=f"^{here}/hard.csv is read by query query, .* as {here}/data/in.csv: stop"
    ):
        take_all(reads_and_writes(str(here / "data" / "in.csv"), "/dev/null"), "query")
    locks += take_all(reads_and_writes(str(here / "data" / "in.csv"), "/dev/null"), "other")
    for each in locks:
        each.release()


def test_a_file_that_a_registered_fragment_will_read_is_not_written_by_its_query(here: Path) -> None:
    """The fragment that writes may start first; other queries may write the file until the reader runs."""
    read = here / "data" / "in.csv"
    note = note_reads(reads_and_writes(str(read), "/dev/null"), "query")
    assert note is not None
    with pytest.raises(SinkInUse, match=f"^{read} is read by query query, .* as {read}: stop"):
        take_all(writes(read), "query")
    for each in take_all(writes(read), "other"):
        each.release()
    note.release()
    for each in take_all(writes(read), "query"):
        each.release()


def test_a_note_counts_no_more_once_its_processes_are_dead(here: Path) -> None:
    reader = reads_and_writes(str(here / "data" / "in.csv"), "/dev/null")
    (note,) = take_all(reader, "first")
    copy = os.dup(note.descriptor)
    note.close()
    with pytest.raises(SinkInUse, match="is read by query first"):
        take_all(writes(here / "data" / "in.csv"), "second")
    os.close(copy)
    for each in take_all(writes(here / "data" / "in.csv"), "second"):
        each.release()
    assert not Path(note.file).exists()


def test_what_cannot_be_locked_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(OutputError, match=f"{tmp_path} cannot be written: it is a directory"):
        take_all(writes(tmp_path, type="Parquet"), "query")
    with pytest.raises(
        OutputError, match=f"{tmp_path}/file/out.csv cannot be written: {tmp_path}/file is not a directory"
    ):
        take_all(writes(tmp_path / "file" / "out.csv"), "query")
    with pytest.raises(OutputError, match=r"/proc/out\.csv cannot be written: No such file or directory"):
        take_all(writes("/proc/out.csv"), "query")
    assert take_all(writes("/dev/null", mode="append"), "query") == []


def test_of_several_files_all_are_had_or_none(tmp_path: Path) -> None:
    """Rows that are late go to a file of their own: here it is the sink's."""
    data = fragment(tmp_path / "out.csv")
    window = {"id": "w", "type": "window", "input": "in", "time": "n", "size": "1 minute", "late": "out.csv"}
    data["operators"].insert(1, window | {"late": str(tmp_path / "out.csv")})
    with pytest.raises(SinkInUse, match=r"query twice, fragment copy/out"):
        take_all(Fragment.model_validate(data), "twice")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_that_was_shared_stays_whose_it_was(tmp_path: Path) -> None:
    """As where a member that was to follow another one cannot be started."""
    own, note = take_all(writes(tmp_path / "out.csv"), "first")
    shared, other = take_all(writes(tmp_path / "out.csv"), "first", {own.file: own})
    shared.release()
    other.release()
    with pytest.raises(SinkInUse, match="by query first"):
        take_all(writes(tmp_path / "out.csv"), "second")
    own.release()
    note.release()
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def workers(tmp_path: Path) -> Iterator[list[Worker]]:
    found = []
    try:
        for name in ("first", "second"):
            (tmp_path / name).mkdir()
            found.append(Worker(tmp_path / name))
        yield found
    finally:
        for worker in found:
            worker.end()


@pytest.mark.processes
def test_a_killed_worker_lets_go_of_its_files_and_a_living_one_does_not(
    workers: list[Worker], tmp_path: Path
) -> None:
    first, second = workers
    out = tmp_path / "out.csv"
    first.start(first.register(fragment(out, first.data)))
    id_ = second.register(fragment(out, second.data))
    with pytest.raises(grpc.RpcError) as caught:
        second.start(id_)
    code, why = refusal(caught)
    assert (code, why.reason) == (grpc.StatusCode.ALREADY_EXISTS, wire.Refusal.REASON_SINK_IN_USE)
    assert f"fragment copy/out at {first.data}, as {out}: stop that query" in why.message
    assert second.status(id_).state == wire.STATE_REGISTERED
    first.command.process.kill()

    def started() -> bool:
        """Its processes are gone a moment later."""
        with suppress(grpc.RpcError):
            second.start(id_)
        return second.status(id_).state == wire.STATE_RUNNING

    wait_for(started, "the file of a worker that is dead")
    # Who sees the end may write there at once.
    for _ in range(3):
        second.stop(id_)
        second.wait_for_state(id_, wire.STATE_STOPPED)
        id_ = second.register(fragment(out, second.data))
        second.start(id_)


@pytest.mark.story
@pytest.mark.processes
def test_a_worker_does_not_write_over_what_a_query_of_another_one_reads(
    workers: list[Worker], tmp_path: Path
) -> None:
    first, second = workers
    (tmp_path / "in.csv").write_text("n\n1\n", "utf-8")
    reading = reads_and_writes(str(tmp_path / "in.csv"), str(tmp_path / "copy.csv")).model_dump(by_alias=True)
    text = json.dumps(reading, default=str).replace("127.0.0.1:1", first.data)
    id_ = first.register(json.loads(text))
    first.start(id_)
    first.wait_for_state(id_, wire.STATE_RUNNING)
    for path, in_use in (("in.csv", "is read by"), ("copy.csv", "is in use as a sink by")):
        with pytest.raises(grpc.RpcError, match=f"{path} {in_use} query") as caught:
            second.start(second.register(fragment(tmp_path / path, second.data)))
        assert refusal(caught)[1].reason == wire.Refusal.REASON_SINK_IN_USE
    first.stop(id_)
    first.wait_for_state(id_, wire.STATE_STOPPED)
    assert (tmp_path / "in.csv").read_text("utf-8") == "n\n1\n"
    second.start(second.register(fragment(tmp_path / "in.csv", second.data)))
