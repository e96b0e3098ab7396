"""Lines of files: any content, however it grows and is cut, and files that come, go and are not what they were."""

from __future__ import annotations

import asyncio
import csv
import io
import os
import random
import tempfile
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nebuli.connectors.errors import SinkInUse
from nebuli.connectors.sinks.sink_locks import take_files
from nebuli.ingestion.definition import FileOrigin
from nebuli.ingestion.errors import AddressGone, SourceAway, SourceUnusable
from nebuli.ingestion.message_addresses import PAYLOAD
from nebuli.ingestion.readers import line_files, polled_files
from nebuli.ingestion.readers.line_files import LineFiles
from nebuli.ingestion.readers.seen_files import SeenFiles
from nebuli.ingestion.testing import Expected, ReaderConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

    from nebuli.ingestion.message_addresses import Addresses
    from nebuli.ingestion.source_reader import SourceReader

Found = dict[str, list[tuple[int, bytes]]]


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled_files, "SHORTEST_S", 0.01)


def lines_of(path: Path | str, *, quoted: bool = False) -> LineFiles:
    return LineFiles(FileOrigin(type="File", path=str(path)), name="orders", quoted=quoted)


@asynccontextmanager
async def opened(
    path: Path | str, at: Mapping[str, int] | None = None, *, quoted: bool = False
) -> AsyncIterator[LineFiles]:
    reader = lines_of(path, quoted=quoted)
    try:
        await reader.open(at or {})
        yield reader
    finally:
        await reader.close()


async def read_to_ends(reader: LineFiles, found: Found, at: Mapping[str, int] | None = None) -> Addresses:
    """Read until there is nothing more, and say up to where."""
    ends = await reader.ends()
    uppers = {**(at or {}), **{part: rows[-1][0] + len(rows[-1][1]) for part, rows in found.items()}}
    while any(uppers.get(part, 0) < end for part, end in ends.items()):
        messages = await asyncio.wait_for(reader.next(), 10)
        uppers[messages.part] = messages.upper
        payloads = messages.rows.column(PAYLOAD).to_pylist()
        found.setdefault(messages.part, []).extend(zip(messages.addresses.tolist(), payloads, strict=True))
    return uppers


def whole_lines(content: bytes, *, quoted: bool) -> list[tuple[int, bytes]]:
    """Byte by byte, as RFC 4180 has it."""
    lines, begin, is_open = [], 0, False
    for place, octet in enumerate(content):
        if quoted and octet == ord('"'):
            is_open = not is_open
        elif octet == ord("\n") and not is_open:
            lines.append((begin, content[begin : place + 1]))
            begin = place + 1
    return lines


class _Kit(ReaderConformance):
    """Of a file, or of a pattern whose second file comes later; lines have quotes, and ends within such."""

    quoted: bool
    pattern: str

    @pytest.fixture(autouse=True)
    def _small_blocks(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(line_files, "BLOCK_BYTES", 16)

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], SourceReader]:
        (tmp_path / "a.csv").touch()
        return lambda: lines_of(tmp_path / self.pattern, quoted=self.quoted)

    @pytest.fixture
    def add(self, tmp_path: Path) -> Callable[[], Awaitable[list[Expected]]]:
        turns = iter(range(100))

        async def add() -> list[Expected]:
            turn = next(turns)
            expected = []
            names = ["a.csv", f"b{turn % 2}.csv"] if "*" in self.pattern else ["a.csv"]
            for name in names:
                path = tmp_path / name
                begin = path.stat().st_size if path.exists() else 0
                lines = [b"%d,some\n" % turn, b'"x\n""y",%d\n' % turn, b"\n", b"z" * 50 + b"\r\n"]
                if not self.quoted:
                    lines[1:2] = [b'"x\n', b'""y",%d\n' % turn]
                with path.open("ab") as file:
                    file.write(b"".join(lines))
                for line in lines:
                    expected.append(Expected(str(path), begin, {PAYLOAD: line}))
                    begin += len(line)
            return expected

        return add

    @pytest.fixture
    def trim(self, tmp_path: Path) -> Callable[[], Awaitable[Addresses]]:
        async def trim() -> Addresses:
            path = tmp_path / "a.csv"
            end = path.stat().st_size
            path.write_bytes(b"other\n")
            return {str(path): end}

        return trim

    @pytest.fixture
    def away(self, tmp_path: Path) -> list[Callable[[], SourceReader]]:
        os.mkfifo(tmp_path / "pipe")
        return [partial(lines_of, tmp_path / name) for name in ("none", "pipe", "none/*.csv", ".")]


class TestOneFileOfLines(_Kit):
    """JSON lines, to which quotes mean nothing."""

    quoted = False
    pattern = "a.csv"


class TestQuotedLinesOfAPattern(_Kit):
    """CSV, in several files."""

    quoted = True
    pattern = "*.csv"


CONTENT = st.lists(st.sampled_from([b"\n", b'"', b'""', b"a", b"\r\n", b",", b"bc" * 9]), max_size=60).map(
    b"".join
)


@settings(max_examples=150, deadline=None)
@given(
    content=CONTENT, block=st.integers(1, 40), quoted=st.booleans(), draw=st.randoms(use_true_random=False)
)
def test_the_same_lines_however_a_file_grows_and_is_cut(
    content: bytes, block: int, quoted: bool, draw: random.Random
) -> None:
    """Every line of a naive reading, once, at the byte where it begins; an address is good for another reader.

    ST-ING-4, ST-ING-5, ST-ING-6.
    """

    async def scenario(path: Path) -> None:
        path.touch()
        found: Found = {}
        written = 0
        async with opened(path, quoted=quoted) as reader:
            while written < len(content):
                more = draw.randint(1, len(content) - written)
                with path.open("ab") as file:
                    file.write(content[written : written + more])
                written += more
                uppers = await read_to_ends(reader, found)
                expected = whole_lines(content[:written], quoted=quoted)
                assert found.get(str(path), []) == expected
                assert uppers.get(str(path), 0) == sum(len(line) for _, line in expected)
        lines = found.get(str(path), [])
        if lines:
            begin = draw.randrange(len(lines))
            at, rest = {str(path): lines[begin][0]}, Found()
            async with opened(path, at, quoted=quoted) as reader:
                await read_to_ends(reader, rest, at)
            assert rest[str(path)] == lines[begin:]

    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as directory:
        patch.setattr(line_files, "BLOCK_BYTES", block)
        patch.setattr(polled_files, "SHORTEST_S", 0.0)
        asyncio.run(scenario(Path(directory, "a")))


async def test_quotes_are_those_of_another_reader_of_csv(tmp_path: Path) -> None:
    """What Python's csv writes is cut where it has its rows."""
    draw = random.Random(5)
    rows = [["".join(draw.choices('a"\n,\r', k=draw.randint(0, 6))) for _ in range(3)] for _ in range(500)]
    text, ends = io.StringIO(newline=""), []
    writer = csv.writer(text, quoting=csv.QUOTE_ALL, lineterminator="\n")
    for row in rows:
        writer.writerow(row)
        ends.append(text.tell())
    path = tmp_path / "a.csv"
    path.write_bytes(text.getvalue().encode())
    found: Found = {}
    async with opened(path, quoted=True) as reader:
        await read_to_ends(reader, found)
    assert [at + len(line) for at, line in found[str(path)]] == ends


async def test_files_of_a_pattern_are_parts_also_those_that_come_later(tmp_path: Path) -> None:
    """Folders and other names are passed over."""
    (tmp_path / "a.json").write_bytes(b"1\n")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "b.txt").write_bytes(b"no\n")
    async with opened(tmp_path / "*.json") as reader:
        found: Found = {}
        await read_to_ends(reader, found)
        assert found == {str(tmp_path / "a.json"): [(0, b"1\n")]}
        (tmp_path / "c.json").write_bytes(b"2\n")
        assert (await asyncio.wait_for(reader.next(), 10)).part == str(tmp_path / "c.json")


async def test_a_file_may_be_named_like_a_pattern(tmp_path: Path) -> None:
    """Also one that comes later, and it is missed like any other; a pattern may be longer than a name."""
    path = tmp_path / "[1].json"
    async with opened(path) as reader:
        path.write_bytes(b"1\n")
        (tmp_path / "1.json").write_bytes(b"2\n")
        assert (await asyncio.wait_for(reader.next(), 10)).part == str(path)
        path.unlink()
        with pytest.raises(AddressGone, match="is gone: put it back"):
            await asyncio.wait_for(reader.next(), 10)
    with pytest.raises(AddressGone, match="is gone: put it back"):
        async with opened(path, {str(path): 2}):
            pass
    async with opened(tmp_path / ("1*" * 200 + ".json")) as reader:
        assert await reader.ends() == {}


async def test_a_file_that_grows_all_the_time_does_not_keep_others_from_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(line_files, "BLOCK_BYTES", 2)
    (tmp_path / "a").write_bytes(b"1\n" * 100)
    (tmp_path / "b").write_bytes(b"2\n" * 100)
    async with opened(tmp_path / "*") as reader:
        parts = [(await reader.next()).part for _ in range(4)]
    assert parts == [str(tmp_path / name) for name in "abab"]


async def test_a_shorter_file_does_not_have_what_comes_next(tmp_path: Path) -> None:
    """ST-ING-6: both numbers are said."""
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\n")
    with pytest.raises(AddressGone, match="up to byte 6, but has only 4 bytes"):
        async with opened(path, {str(path): 6}):
            pass


async def test_a_file_with_another_content_is_another_one(tmp_path: Path) -> None:
    """ST-ING-6: at least the byte before the address is looked at, and by whoever has read them, more."""
    path = tmp_path / "a"
    path.write_bytes(b"1\n2\n")
    with pytest.raises(AddressGone, match="where no line ends now"):
        async with opened(path, {str(path): 3}):
            pass
    async with opened(path) as reader:
        assert (await reader.next()).upper == 4
        path.write_bytes(b"3\n4\n5\n")
        with pytest.raises(AddressGone, match="another file has replaced it"):
            await asyncio.wait_for(reader.next(), 10)
        (tmp_path / "b").write_bytes(b"1\n2\n5\n")
        (tmp_path / "b").replace(path)
        assert (await asyncio.wait_for(reader.next(), 10)).rows.to_pylist() == [{PAYLOAD: b"5\n"}]


async def test_another_file_is_told_by_the_next_reader_too_and_what_was_not_recorded_may_be_mended(
    tmp_path: Path,
) -> None:
    path, seen = tmp_path / "a", SeenFiles()

    def another() -> LineFiles:
        return LineFiles(FileOrigin(type="File", path=str(path)), name="orders", quoted=False, seen=seen)

    async def read_from(at: int) -> list[bytes]:
        reader = another()
        try:
            await reader.open({str(path): at} if at else {})
            return (await asyncio.wait_for(reader.next(), 10)).rows.column(PAYLOAD).to_pylist()
        finally:
            await reader.close()

    for content, at in ((b"1\n2\n", 0), (b"1\n2\nbad\n", 4), (b"1\n2\ngood\n", 4)):
        path.write_bytes(content)
        assert await read_from(at) == content[at:].splitlines(keepends=True)
    path.write_bytes(b"3\n4\ngood\nmore\n")
    for at in (9, 9, 4, 4):
        with pytest.raises(AddressGone, match="another file has replaced it"):
            await read_from(at)
    assert await read_from(0) == [b"3\n", b"4\n", b"good\n", b"more\n"]


async def test_one_file_that_is_not_there_may_come_and_is_missed_once_it_was_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    with pytest.raises(SourceAway, match="/a does not exist"):
        async with opened(path):
            pass
    path.write_bytes(b"1\n")
    async with opened(path) as reader:
        await reader.next()
        path.unlink()
        with pytest.raises(AddressGone, match="up to byte 2, but is gone"):
            await asyncio.wait_for(reader.next(), 10)
    with pytest.raises(AddressGone, match="up to byte 2, but is gone"):
        async with opened(path, {str(path): 2}):
            pass


async def test_a_file_of_a_pattern_may_go_once_it_is_read(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """That is said once, in one line for all, with how much of one was read; before it is read, it is missed."""
    path = tmp_path / "a"
    path.write_bytes(b"1\n")
    (tmp_path / "b").touch()
    async with opened(tmp_path / "*") as reader:
        await reader.next()
        path.unlink()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.2)
    assert [
        each for each in caplog.messages if "read up to byte 2" in each and str(path) in each
    ] == caplog.messages
    assert len(caplog.messages) == 1
    gone = {str(tmp_path / f"gone {number}"): 2 for number in range(9)}
    async with opened(tmp_path / "*", {**gone, str(path): 2}) as reader:
        assert len(caplog.messages) == 2
        assert ": 10 file(s)" in caplog.messages[1]
        path.write_bytes(b"1\n2\n")
        assert (await asyncio.wait_for(reader.next(), 10)).lower == 2


async def test_a_file_of_a_pattern_that_goes_in_the_middle_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-ING-6."""
    monkeypatch.setattr(line_files, "BLOCK_BYTES", 2)
    (tmp_path / "a").write_bytes(b"1\n2\n")
    async with opened(tmp_path / "*") as reader:
        await reader.next()
        (tmp_path / "a").unlink()
        with pytest.raises(AddressGone, match="read only up to byte 2"):
            await asyncio.wait_for(reader.next(), 10)


async def test_a_last_line_without_its_end_is_waited_for_and_told_of_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(line_files, "UNENDED_S", 0.03)
    path = tmp_path / "a"
    path.write_bytes(b"1\n23")
    async with opened(path) as reader:
        assert (await reader.next()).upper == 2
        assert await reader.ends() == {str(path): 2}
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.3)
        assert [
            each for each in caplog.messages if "has 2 bytes after its last line end" in each
        ] == caplog.messages
        assert len(caplog.messages) == 1
        with path.open("ab") as file:
            file.write(b"4\n")
        assert (await asyncio.wait_for(reader.next(), 10)).rows.to_pylist() == [{PAYLOAD: b"234\n"}]


@pytest.mark.parametrize("length", [64, 65])
async def test_a_line_is_too_long_or_not_however_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int
) -> None:
    """Whether it was whole from the beginning, or came in pieces."""
    monkeypatch.setattr(line_files, "LONGEST_LINE", 64)
    monkeypatch.setattr(line_files, "BLOCK_BYTES", 5)
    line = b"x" * (length - 1) + b"\n"
    path = tmp_path / "a"
    for piece in (1, 7, 64, 500):
        path.write_bytes(b"")
        async with opened(path) as reader:
            reading = asyncio.create_task(reader.next())
            for begin in range(0, 500, piece):
                with path.open("ab") as file:
                    file.write((line + b"y" * 500)[begin : begin + piece])
                await asyncio.sleep(0)
            if length <= 64:
                assert (await asyncio.wait_for(reading, 10)).upper == length
            else:
                with pytest.raises(SourceUnusable, match=r"line at byte 0 of .* has no end within 64 bytes"):
                    await asyncio.wait_for(reading, 10)


async def test_what_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    os.mkfifo(tmp_path / "b")
    for name, at in (("a", 0), ("b", 0), ("b", 1)):
        with pytest.raises(SourceUnusable, match="not a regular file"):
            async with opened(tmp_path / name, {str(tmp_path / name): at}):
                pass
    (tmp_path / "c").mkdir()
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/c/\xff.csv")).write_bytes(b"1\n")
    with pytest.raises(SourceUnusable, match=r"the name of .*udcff.csv is not UTF-8, .*: rename it"):
        async with opened(tmp_path / "c" / "*.csv") as reader:
            await reader.next()
    with pytest.raises(SourceAway, match=r"none cannot be read: No such file"):
        async with opened(tmp_path / "none" / "*.csv"):
            pass


@pytest.mark.parametrize("pattern", ["sales.csv", "*.csv"])
async def test_no_sink_writes_over_a_file_that_is_ingested(pattern: str, tmp_path: Path) -> None:
    """By its path, a link, a hard link, and a name that the pattern would match; when the source ends, it may."""
    path = tmp_path / "sales.csv"
    path.write_text("a\n", "utf-8")
    (tmp_path / "link").symlink_to(path)
    (tmp_path / "hard").hardlink_to(path)
    used = [path, tmp_path / "link", tmp_path / "hard", tmp_path / "x" / ".." / "sales.csv"]
    (tmp_path / "x").mkdir()
    if pattern != path.name:
        used.append(tmp_path / "new.csv")
    async with opened(tmp_path / pattern):
        for each in used:
            with pytest.raises(SinkInUse, match=r"is read by source orders at .*: stop that query"):
                take_files([str(each)], "q", "o", "here:1")
    for each in used:
        for lock in take_files([str(each)], "q", "o", "here:1"):
            lock.release()
