"""The command ``netchannel``, in two processes as in two terminals."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.json as pj
import pyarrow.parquet as pq
import pytest

import netchannel
from netchannel.cli import row_files as files
from netchannel.cli.row_files import FileNotWritten, FileUnusable, Output, read_batches
from tests.support.ports import free_addresses
from tests.support.terminals import on_terminal
from tests.support.waiting import wait_for

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64()), "word": ["a", 'b "c"', "é"]})


def write(table: pa.Table, path: Path) -> None:
    """Write a file with pyarrow's own writers."""
    match path.suffix:
        case ".csv":
            pc.write_csv(table, path)
        case ".parquet":
            pq.write_table(table, path)
        case ".jsonl":
            lines = [json.dumps(row, ensure_ascii=False) for row in table.to_pylist()]
            path.write_text("\n".join(lines) + "\n", "utf-8")
        case _:
            made = pa.ipc.new_file if path.suffix == ".arrow" else pa.ipc.new_stream
            with made(path, table.schema) as writer:
                writer.write_table(table)


def read(path: Path) -> pa.Table:
    match path.suffix:
        case ".csv":
            return pc.read_csv(path)
        case ".parquet":
            return pq.read_table(path)
        case ".jsonl":
            return pj.read_json(path)
        case ".arrows":
            return pa.ipc.open_stream(path).read_all()
    return pa.ipc.open_file(path).read_all()


def called(*arguments: str | Path, given: str | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "netchannel", *map(str, arguments)]
    return subprocess.run(
        command, check=False, capture_output=True, encoding="utf-8", input=given, timeout=50
    )


@contextmanager
def running(*arguments: str | Path) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "netchannel", *map(str, arguments)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_a_file_is_written_as_it_was_read(
    tmp_path: Path, suffix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "BATCH_ROWS", 2)
    write(ROWS, tmp_path / f"in{suffix}")
    batches = [*read_batches(str(tmp_path / f"in{suffix}"))]
    assert [each.num_rows for each in batches] == [2, 1]
    output = Output(str(tmp_path / f"out{suffix}"))
    output.open(batches[0].schema)
    for batch in batches:
        output.write(batch)
    assert not (tmp_path / f"out{suffix}").exists()
    output.publish()
    assert output.keep_part() is None
    assert read(tmp_path / f"out{suffix}").equals(ROWS)
    assert {each.name for each in tmp_path.iterdir()} == {f"in{suffix}", f"out{suffix}"}


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_a_part_of_a_stream_has_a_file_of_its_own(tmp_path: Path, suffix: str) -> None:
    for _ in range(2):
        output = Output(str(tmp_path / f"out{suffix}"))
        output.open(ROWS.schema)
        output.write(ROWS.to_batches()[0])
        part = output.keep_part()
        assert part is not None
        assert read(part).equals(ROWS)
    names = {each.name for each in tmp_path.iterdir()}
    assert len(names) == 2
    assert f"out.partial{'.arrows' if suffix in ('.parquet', '.arrow') else suffix}" in names
    assert f"out{suffix}" not in names


def test_a_stream_of_arrow_in_a_file_is_read_too(tmp_path: Path) -> None:
    with pa.ipc.new_stream(tmp_path / "in.arrow", ROWS.schema) as writer:
        writer.write_table(ROWS)
    assert pa.Table.from_batches(read_batches(str(tmp_path / "in.arrow"))).equals(ROWS)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("rows.txt", "the file format is not clear from the name"),
        ("gone.csv", "gone.csv cannot be read: No such file or directory$"),
        ("bad.parquet", "bad.parquet"),
    ],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "bad.parquet").write_bytes(b"no parquet")
    with pytest.raises(FileUnusable, match=said):
        [*read_batches(str(tmp_path / name))]


def test_a_read_only_folder_is_refused_before_rows_come(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer is replaced: for root every folder can be written."""
    monkeypatch.setattr(os, "access", lambda path, mode: (path, mode) != (tmp_path, os.W_OK | os.X_OK))
    with pytest.raises(
        FileNotWritten, match=f"out.csv cannot be written: the folder {tmp_path} is read-only"
    ):
        Output(str(tmp_path / "out.csv"))


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".arrow"])
def test_a_file_without_rows_keeps_its_columns(tmp_path: Path, suffix: str) -> None:
    write(ROWS.slice(0, 0), tmp_path / f"in{suffix}")
    (batch,) = read_batches(str(tmp_path / f"in{suffix}"))
    output = Output(str(tmp_path / f"out{suffix}"))
    output.open(batch.schema)
    output.write(batch)
    output.publish()
    got = read(tmp_path / f"out{suffix}")
    assert (got.column_names, got.num_rows) == (ROWS.column_names, 0)


def test_lines_of_json_have_base64_for_bytes_and_strings_for_numbers_that_json_lacks(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "raw": pa.array([b"\x00\xff", b"", None]),
            "number": [float("nan"), float("-inf"), 1.5],
            "nested": [{"all": [float("inf")], "of": b"\x00"}, None, {"all": [], "of": None}],
        }
    )
    output = Output(str(tmp_path / "out.jsonl"))
    output.open(rows.schema)
    output.write(rows.to_batches()[0])
    output.publish()

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    lines = (tmp_path / "out.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line, parse_constant=refuse) for line in lines] == [
        {"raw": "AP8=", "number": "NaN", "nested": {"all": ["Infinity"], "of": "AA=="}},
        {"raw": "", "number": "-Infinity", "nested": None},
        {"raw": None, "number": 1.5, "nested": {"all": [], "of": None}},
    ]


def test_columns_that_a_format_lacks_are_refused_and_leave_no_file(tmp_path: Path) -> None:
    twice = pa.schema([("n", pa.int64()), ("n", pa.int64())])
    with pytest.raises(FileNotWritten, match=r"column 'n' occurs several times; write \.csv or \.arrow"):
        Output(str(tmp_path / "out.jsonl")).open(twice)
    output = Output(str(tmp_path / "out.csv"))
    with pytest.raises(FileNotWritten, match=r"out\.csv cannot be written: .*list"):
        output.open(pa.schema([("n", pa.list_(pa.int64()))]))
    assert output.keep_part() is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", ["gone/out.csv", "folder.csv"])
def test_a_place_that_takes_no_file_is_refused_before_rows_come(tmp_path: Path, name: str) -> None:
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(FileNotWritten, match=f"{name} cannot be written"):
        Output(str(tmp_path / name))


@pytest.mark.processes
def test_a_file_is_sent_and_received_whoever_is_first(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    write(ROWS, tmp_path / "in.csv")
    with running("send", tmp_path / "in.csv", f"{address}/rows") as sender:
        received = called("recv", f"{address}/rows", "--out", tmp_path / "out.parquet")
        assert sender.wait(30) == 0
        assert sender.stderr is not None
        assert "3 rows acknowledged" in sender.stderr.read()
    assert (received.returncode, received.stdout) == (0, "")
    assert "3 rows received" in received.stderr
    assert pq.read_table(tmp_path / "out.parquet").equals(ROWS)


@pytest.mark.processes
def test_rows_of_a_producer_that_is_interrupted_are_in_a_file_of_their_own(tmp_path: Path) -> None:
    """It sends standard input, which has not ended."""
    (address,) = free_addresses(1)
    out = tmp_path / "out.csv"
    with running("recv", f"{address}/rows", "--out", out) as receiver:
        command = [sys.executable, "-m", "netchannel", "send", "-", f"{address}/rows"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as sender:
            assert sender.stdin is not None
            sender.stdin.write(b"n\n" + b"1234567\n" * 400_000)
            sender.stdin.flush()
            try:
                wait_for(lambda: [*tmp_path.iterdir()], "rows are written aside", 20)
                sender.send_signal(signal.SIGINT)
                assert sender.wait(20) == 130
            finally:
                sender.kill()
        assert receiver.wait(30) == 1
        assert receiver.stderr is not None
        printed = receiver.stderr.read()
        assert "Error: " in printed
        assert f"{tmp_path / 'out.partial.csv'} has the " in printed
    assert [each.name for each in tmp_path.iterdir()] == ["out.partial.csv"]
    assert set(pc.read_csv(tmp_path / "out.partial.csv")["n"].to_pylist()) == {1234567}


@pytest.mark.processes
async def test_recv_prints_once_per_cause_whom_it_refuses() -> None:
    (address,) = free_addresses(1)
    with running("recv", f"{address}/rows") as receiver:
        async with netchannel.SenderServer() as first, netchannel.SenderServer() as second:
            channel = first.register_channel("rows", to=address)
            await channel.attached()
            for sender, id_ in ((first, "row"), (first, "row"), (second, "rows")):
                refused = sender.register_channel(id_, to=address)
                async with asyncio.timeout(20):
                    while f"channel {id_!r} is" not in refused.core.last_failure:  # noqa: ASYNC110 - not notified
                        await asyncio.sleep(0.02)
                await refused.detach()
            pinged = await asyncio.to_thread(called, "ping", address, "--count", "1")
            assert pinged.returncode == 0, pinged.stderr
            await channel.send(ROWS.to_batches()[0])
            await channel.close()
        _, printed = await asyncio.to_thread(receiver.communicate, timeout=30)
    lines = [line for line in printed.splitlines() if "is refused" in line]
    assert len(lines) == 2
    assert re.fullmatch(r"sender \S+ at \S+ is refused: channel 'row' is not registered there", lines[0])
    assert "is refused: channel 'rows' is in use by sender " in lines[1]


@pytest.mark.processes
def test_a_sender_whose_receiver_fails_ends_with_its_reason() -> None:
    """Also while it waits for standard input."""
    (address,) = free_addresses(1)
    send = [sys.executable, "-m", "netchannel", "send", "-", f"{address}/rows"]
    recv = [sys.executable, "-m", "netchannel", "recv", f"{address}/rows"]
    with (
        Path("/dev/full").open("wb") as full,
        subprocess.Popen(send, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as sender,
    ):
        assert sender.stdin is not None
        assert sender.stderr is not None
        try:
            sender.stdin.write(b"n\n" + b"1234567\n" * 400_000)
            sender.stdin.flush()
            receiver = subprocess.run(recv, stdout=full, stderr=subprocess.PIPE, timeout=50, check=False)
            assert sender.wait(20) == 1
        finally:
            sender.kill()
        assert b"recv failed: standard output cannot be written: " in sender.stderr.read()
    assert receiver.returncode == 1
    assert b"No space left on device" in receiver.stderr


@pytest.mark.processes
async def test_a_receiver_that_is_terminated_keeps_the_rows_that_came(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    with running("recv", f"{address}/rows", "--out", tmp_path / "out.csv") as receiver:
        async with netchannel.SenderServer() as sender:
            channel = sender.register_channel("rows", to=address)
            await channel.send(ROWS.to_batches()[0])
            await channel.flush()  # acknowledged, so no other process has them
            receiver.terminate()
            _, printed = await asyncio.to_thread(receiver.communicate, timeout=30)
            with pytest.raises(netchannel.ChannelClosedByPeer, match="recv was interrupted"):
                await channel.close()
    assert receiver.returncode == 143
    assert f"{tmp_path / 'out.partial.csv'} has the 3 received rows" in printed
    assert [each.name for each in tmp_path.iterdir()] == ["out.partial.csv"]
    assert read(tmp_path / "out.partial.csv").equals(ROWS)


@pytest.mark.processes(2)
@pytest.mark.parametrize("taken", [1, 2])
async def test_the_rest_of_a_stream_for_a_receiver_that_was_killed_is_not_a_whole_file(
    tmp_path: Path, taken: int
) -> None:
    (address,) = free_addresses(1)
    out = tmp_path / "out.csv"
    async with netchannel.SenderServer() as sender:
        channel = sender.register_channel("rows", to=address)
        with running("recv", f"{address}/rows", "--out", out) as receiver:
            for _ in range(taken):
                await channel.send(ROWS.to_batches()[0])
            await channel.flush()
            receiver.kill()
        (first,) = tmp_path.iterdir()
        with running("recv", f"{address}/rows", "--out", out) as receiver:
            if taken == 1:
                await channel.send(ROWS.to_batches()[0])
            await channel.close()
            _, printed = await asyncio.to_thread(receiver.communicate, timeout=30)
    assert receiver.returncode == 1
    assert f"Error: the first {taken} messages of the stream went to an earlier recv" in printed
    assert f"their rows are in {first}" in printed
    assert not out.exists()
    assert pc.read_csv(first).equals(pa.concat_tables([ROWS] * taken))
    assert read(tmp_path / "out.partial.csv").num_rows == 3 * (2 - taken)


@pytest.mark.processes(2)
async def test_a_second_stream_of_a_sender_ends_a_receiver_that_has_rows_of_the_first(tmp_path: Path) -> None:
    (address,) = free_addresses(1)
    with running("recv", f"{address}/rows", "--out", tmp_path / "out.csv") as receiver:
        command = [sys.executable, "-m", "netchannel", "send", "-", f"{address}/rows"]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as first:  # noqa: ASYNC220 - it starts at once
            assert first.stdin is not None
            first.stdin.write(b"n,word\n" + b"1234567,a\n" * 400_000)
            first.stdin.flush()
            wait_for(lambda: any(each.stat().st_size > 10 for each in tmp_path.iterdir()), "rows are written")
            first.kill()
        async with netchannel.SenderServer() as sender:
            channel = sender.register_channel("rows", to=address)
            await channel.send(ROWS.to_batches()[0])
            _, printed = await asyncio.to_thread(receiver.communicate, timeout=30)
            await channel.abort("the receiver has gone")
    assert receiver.returncode == 1
    assert "Error: send was started again, with a new stream: start recv again" in printed
    assert {*read(tmp_path / "out.partial.csv")["n"].to_pylist()} == {1234567}


@contextmanager
def at_most(file_bytes: int) -> Iterator[None]:
    """Let no file of this process grow beyond, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_rows_before_a_full_disk_are_in_the_file_of_the_part(tmp_path: Path, suffix: str) -> None:
    rows = pa.record_batch({"n": pa.array(range(10_000))})
    output = Output(str(tmp_path / f"out{suffix}"))
    output.open(rows.schema)
    output.write(rows)
    (written,) = tmp_path.iterdir()
    with at_most(written.stat().st_size + 30_001):
        with pytest.raises(FileNotWritten, match=rf"out\{suffix} cannot be written: .*File too large"):
            output.write(rows)
        part = output.keep_part()
    assert part == tmp_path / f"out.partial{'.arrows' if suffix in ('.parquet', '.arrow') else suffix}"
    assert [*tmp_path.iterdir()] == [part]
    assert read(part).equals(pa.Table.from_batches([rows]))


def test_all_rows_are_kept_when_a_disk_is_full_before_their_file_is_whole(tmp_path: Path) -> None:
    numbers = np.random.default_rng(1).integers(0, 2**62, 100_000)  # as Parquet no smaller than as a stream
    rows = pa.record_batch({"n": pa.array(numbers)})
    output = Output(str(tmp_path / "out.parquet"))
    output.open(rows.schema)
    output.write(rows)
    (written,) = tmp_path.iterdir()
    with at_most(written.stat().st_size + 100):
        with pytest.raises(FileNotWritten, match=r"out\.parquet cannot be written: .*File too large"):
            output.publish()
        part = output.keep_part()
    assert part == tmp_path / "out.partial.arrows"
    assert [*tmp_path.iterdir()] == [part]
    assert read(part).equals(pa.Table.from_batches([rows]))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("closed", "exit_code", "said"),
    [
        (">&-", 1, "Error: standard output cannot be written: Bad file descriptor\n"),
        (">/dev/full", 1, "Error: standard output cannot be written: No space left on device\n"),
        ("<&-", 0, ""),
        ("2>&-", 0, ""),
    ],
)
async def test_with_closed_standard_streams_only_the_result_is_missed(
    closed: str, exit_code: int, said: str
) -> None:
    async with netchannel.ReceiverServer() as receiver:
        command = f"{sys.executable} -m netchannel ping {receiver.address} --count 1 {closed}"
        process = await asyncio.create_subprocess_shell(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        out, err = await asyncio.wait_for(process.communicate(), 50)
    assert (process.returncode, err.decode()) == (exit_code, said)
    assert len(out.splitlines()) == (0 if exit_code else 2)


@pytest.mark.processes
async def test_a_kept_channel_is_followed_to_its_end() -> None:
    (address,) = free_addresses(1)
    async with netchannel.SenderServer(listen=address) as sender:
        channel = sender.retain_channel("log", policy=netchannel.RetainPolicy(1 << 20))
        await channel.send_many(ROWS.to_batches(max_chunksize=1))
        closing = asyncio.create_task(channel.close())  # it waits, so that it can be read
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "netchannel",
            "tail",
            "--from-start",
            f"{address}/log",
            stdout=subprocess.PIPE,
        )
        try:
            out, _ = await asyncio.wait_for(process.communicate(), 50)
        finally:
            closing.cancel()
            with suppress(ProcessLookupError):
                process.kill()
        assert process.returncode == 0
    assert out.decode().splitlines() == ['"n","word"', '1,"a"', '2,"b ""c"""', '3,"é"']


@pytest.mark.processes
async def test_ping_measures_and_says_who_is_not_there() -> None:
    (gone,) = free_addresses(1)
    async with netchannel.ReceiverServer(secret="abc") as receiver:
        command = (sys.executable, "-m", "netchannel", "ping", receiver.address, "--count", "2")
        process = await asyncio.create_subprocess_exec(*command, stderr=subprocess.PIPE)
        _, err = await asyncio.wait_for(process.communicate(), 50)
        assert process.returncode == 1
        assert b"secret" in err
    done = await asyncio.to_thread(called, "ping", gone, "--timeout", "0.5")
    assert (done.returncode, done.stdout) == (1, "")
    assert f"{gone} did not answer in 0.5 s" in done.stderr
    assert "refused" in done.stderr
    done = await asyncio.to_thread(called, "ping", "nowhere.invalid:1", "--timeout", "1")
    assert (done.returncode, done.stdout) == (1, "")
    assert "cannot resolve nowhere.invalid: " in done.stderr
    async with netchannel.ReceiverServer() as receiver:
        done = await asyncio.to_thread(called, "ping", receiver.address, "--count", "2")
    assert done.returncode == 0
    assert [line.endswith(" ms") for line in done.stdout.splitlines()] == [True] * 3


@pytest.mark.processes
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["send", "rows.csv", "127.0.0.1"], "expected HOST:PORT/CHANNEL, got '127.0.0.1'"),
        (["recv", "127.0.0.1:0/c", "--secret-file", "gone"], "gone cannot be read"),
        (["ping", "127.0.0.1:1", "--count", "0"], "expected a number above 0, got '0'"),
        (["ping", "127.0.0.1:1", "--timeout", "nan"], "expected a number above 0, got 'nan'"),
    ],
)
def test_bad_input_is_exit_code_2(arguments: list[str], said: str) -> None:
    done = called(*arguments)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.processes
def test_a_sender_on_a_terminal_shows_how_far_it_is(tmp_path: Path) -> None:
    write(ROWS, tmp_path / "rows.csv")
    (address,) = free_addresses(1)
    with subprocess.Popen(
        [sys.executable, "-m", "netchannel", "recv", f"{address}/c"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ):
        send = [sys.executable, "-m", "netchannel", "send", "rows.csv", f"{address}/c"]
        code, drawn = on_terminal(send, tmp_path)
    assert code == 0, drawn
    first, *_ = drawn.split("\r\x1b[K")[1:]
    assert first == f"waiting for {address}"
    assert drawn.endswith("\r\x1b[K3 rows acknowledged, messages: 1\r\n")
