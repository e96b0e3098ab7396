"""Rows of Parquet files: by their numbers, however they are cut, and files that are not what they should be."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nebuli.ingestion.definition import ParquetOrigin
from nebuli.ingestion.errors import AddressGone, SourceAway, SourceUnusable
from nebuli.ingestion.readers import parquet_files, polled_files
from nebuli.ingestion.readers.parquet_files import ParquetFiles
from nebuli.ingestion.readers.seen_files import SeenFiles
from nebuli.ingestion.testing import Expected, ReaderConformance

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
    from pathlib import Path

    from nebuli.ingestion.message_addresses import Addresses
    from nebuli.ingestion.source_reader import SourceReader

SCHEMA = pa.schema([("id", pa.int64()), ("name", pa.string())])


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polled_files, "SHORTEST_S", 0.01)


def rows_of(path: Path | str, seen: SeenFiles | None = None) -> ParquetFiles:
    origin = ParquetOrigin(type="Parquet", path=str(path))
    return ParquetFiles(origin, schema=SCHEMA, name="orders", seen=seen)


@asynccontextmanager
async def opened(
    path: Path | str, at: Mapping[str, int] | None = None, *, seen: SeenFiles | None = None
) -> AsyncIterator[ParquetFiles]:
    reader = rows_of(path, seen)
    try:
        await reader.open(at or {})
        yield reader
    finally:
        await reader.close()


def named(ids: range) -> pa.Table:
    return pa.table({"id": pa.array(ids, pa.int32()), "other": list(ids), "name": [f"n{n}" for n in ids]})


def publish(path: Path, table: pa.Table, **options: Any) -> None:
    pq.write_table(table, path.with_suffix(".tmp"), **options)
    path.with_suffix(".tmp").rename(path)


class TestParquetFiles(ReaderConformance):
    """Files that come one after the other, of several row groups."""

    @pytest.fixture(autouse=True)
    def _small_batches(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(parquet_files, "BATCH_ROWS", 3)

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[[], SourceReader]:
        return lambda: rows_of(tmp_path / "*.parquet")

    @pytest.fixture
    def add(self, tmp_path: Path) -> Callable[[], Awaitable[list[Expected]]]:
        turns = iter(range(100))

        async def add() -> list[Expected]:
            path = tmp_path / f"{next(turns)}.parquet"
            publish(path, named(range(10)), row_group_size=4)
            return [Expected(str(path), n, {"id": n, "name": f"n{n}"}) for n in range(10)]

        return add

    @pytest.fixture
    def trim(self, tmp_path: Path) -> Callable[[], Awaitable[Addresses]]:
        async def trim() -> Addresses:
            publish(tmp_path / "0.parquet", named(range(4)))
            return {str(tmp_path / "0.parquet"): 7}

        return trim

    @pytest.fixture
    def away(self, tmp_path: Path) -> list[Callable[[], SourceReader]]:
        pq.write_table(pa.table({"id": ["text"], "name": ["a"]}), tmp_path / "strange")
        return [partial(rows_of, tmp_path / name) for name in ("none", "none/*.parquet", ".", "strange")]


@pytest.mark.parametrize("batch", [1, 4, 5, 100])
@pytest.mark.parametrize("group", [1, 4, 7])
async def test_it_begins_at_any_row_of_any_row_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: int, batch: int
) -> None:
    """ST-ING-5."""
    monkeypatch.setattr(parquet_files, "BATCH_ROWS", batch)
    path = tmp_path / "a"
    publish(path, named(range(20)), row_group_size=group)
    for begin in range(20):
        async with opened(path, {str(path): begin}) as reader:
            found, numbers = [], []
            while len(found) < 20 - begin:
                messages = await reader.next()
                found += messages.rows.column("id").to_pylist()
                numbers += messages.addresses.tolist()
            assert found == numbers == list(range(begin, 20))


async def test_columns_are_found_by_name_and_others_are_passed_over(tmp_path: Path) -> None:
    """Narrower ones are as they are wanted."""
    publish(tmp_path / "a", named(range(2)).select(["name", "other", "id"]))
    async with opened(tmp_path / "a") as reader:
        messages = await reader.next()
        assert await reader.ends() == {str(tmp_path / "a"): 2}
    assert messages.rows.schema.equals(SCHEMA)
    assert messages.rows.to_pylist() == [{"id": 0, "name": "n0"}, {"id": 1, "name": "n1"}]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"id": [1]}, "no column name, which the source has; the file's columns are id"),
        ({"id": [1], "name": [5]}, "column name is int64, but string in the source"),
        ({"id": pa.array([1], pa.uint64()), "name": ["a"]}, "column id is uint64, but int64 in the source"),
    ],
)
async def test_a_file_of_other_columns_is_refused(tmp_path: Path, columns: dict[str, Any], said: str) -> None:
    publish(tmp_path / "a", pa.table(columns))
    async with opened(tmp_path / "*") as reader:
        for _ in range(2):
            with pytest.raises(SourceUnusable, match=f"orders: {tmp_path / 'a'}: {said}"):
                await reader.next()


async def test_a_file_that_is_not_finished_is_tried_again_and_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A row is not there before its file is whole."""
    publish(tmp_path / "whole", named(range(3)))
    content = (tmp_path / "whole").read_bytes()
    (tmp_path / "whole").unlink()
    async with opened(tmp_path / "*") as reader:
        for end in (0, 4, 20, len(content) - 1):
            (tmp_path / "a").write_bytes(content[:end])
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(reader.next(), 0.1)
            assert await reader.ends() == {str(tmp_path / "a"): 0}
        assert len(caplog.messages) == 1
        assert "is not finished" in caplog.messages[0]
        (tmp_path / "a").write_bytes(content)
        assert (await asyncio.wait_for(reader.next(), 10)).upper == 3


async def test_another_file_in_its_place_is_not_read_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-ING-6: one with fewer rows, and, for who has read it, one with another footer; the same one again is.

    Also where there are as many rows, and by the next reader, unless that begins anew.
    """
    monkeypatch.setattr(parquet_files, "BATCH_ROWS", 2)
    path = tmp_path / "a"
    publish(path, named(range(3)))
    with pytest.raises(AddressGone, match="up to row 4, but has only 3 rows"):
        async with opened(path, {str(path): 4}):
            pass
    seen = SeenFiles()
    async with opened(path, seen=seen) as reader:
        await reader.next()
        assert (await reader.next()).upper == 3
        publish(path, named(range(3)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.next(), 0.1)
        publish(path, named(range(5)))
        with pytest.raises(AddressGone, match="up to row 3, but has another footer, and 5 rows now"):
            await asyncio.wait_for(reader.next(), 10)
    publish(path, named(range(1, 4)))
    for _ in range(2):
        with pytest.raises(AddressGone, match="up to row 3, but has another footer, and 3 rows now"):
            async with opened(path, {str(path): 3}, seen=seen):
                pass
    async with opened(path, seen=seen) as reader:
        assert (await reader.next()).upper == 2


async def test_a_file_with_broken_pages_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a"
    publish(path, named(range(1000)), compression="zstd")
    content = bytearray(path.read_bytes())
    content[4:400] = bytes(396)
    path.write_bytes(content)
    async with opened(path) as reader:
        with pytest.raises(SourceUnusable, match="cannot be read") as caught:
            await reader.next()
    assert "\n" not in str(caught.value)


async def test_a_file_that_is_not_there_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(SourceAway, match="/a does not exist"):
        async with opened(tmp_path / "a"):
            pass
