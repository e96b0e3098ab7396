"""What an instance says of itself, and what stays of that."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nebuli.ingestion import attempts, instance
from nebuli.ingestion.connector_factory import reader_of
from nebuli.ingestion.definition import Definition, parse_definition
from nebuli.ingestion.entries import InstanceStatus
from nebuli.ingestion.recipe import timed_messages
from nebuli.ingestion.recipe.reclocking import Remap
from nebuli.ingestion.recipe.timed_messages import TICK_S
from nebuli.ingestion.source_client import Sources
from nebuli.ingestion.source_reader import SourceReader
from tests.support.waiting import until_async

LINES = "shop,amount\nAachen,1\nBonn,2\n"


def definition(path: Path, more: str = "") -> Definition:
    return parse_definition(
        f"""
        name: sales
        from: {{type: File, path: {path}}}
        format: CSV
        on_error: wait
        {more}
        schema: [{{name: shop, type: string}}, {{name: amount, type: int64}}]
        """
    )


@asynccontextmanager
async def ingesting(sources: Sources, name: str = "1") -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(sources.ingest("sales", instance=name))
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def said(sources: Sources, is_so: Callable[[InstanceStatus], bool], what: str) -> InstanceStatus:
    async def look() -> InstanceStatus | None:
        return next((each for each in await sources.instances("sales") if is_so(each)), None)

    return await until_async(look, what)


async def test_a_file_that_vanishes_is_an_error_that_ends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The instance says which, says that it is still there while it waits, and goes on once the file is back."""
    monkeypatch.setattr(instance, "_REPORT_S", 0.1)
    file, aside = tmp_path / "sales.csv", tmp_path / "aside.csv"
    file.write_text(LINES, "utf-8")
    async with Sources(tmp_path / "store") as sources:
        await sources.create(definition(file))
        async with ingesting(sources) as task:
            await said(sources, lambda each: each.upper > 0, "it has written something")
            file.rename(aside)
            waiting = await said(sources, lambda each: each.health == "waiting", "it waits")
            assert waiting.error is not None
            assert str(file) in waiting.error
            await said(
                sources,
                lambda each: each.health == "waiting" and each.at > (each.last_error_at or 0),
                "it is seen while it waits",
            )
            aside.rename(file)
            running = await said(sources, lambda each: each.health == "running" and each.upper > 0, "it runs")
            assert (running.error, running.last_error) == (None, waiting.error)
            assert not task.done()
        assert [each.health for each in await sources.instances("sales")] == ["ended"]
        rows = await sources.collections.snapshot("sales", await sources.collections.latest("sales"))
        assert sorted(rows.to_pylist(), key=str) == [
            {"shop": "Aachen", "amount": 1},
            {"shop": "Bonn", "amount": 2},
        ]


async def test_an_instance_that_is_cancelled_does_nothing_any_more(tmp_path: Path) -> None:
    """Its collection stands still."""
    file = tmp_path / "sales.csv"
    file.write_text(LINES, "utf-8")
    async with Sources(tmp_path / "store") as sources:
        await sources.create(definition(file))
        async with ingesting(sources):
            await said(sources, lambda each: each.upper > 0, "it has written something")
        latest = await sources.collections.latest("sales")
        file.write_text(f"{LINES}Bonn,3\n", "utf-8")
        await asyncio.sleep(2 * TICK_S)  # in which an instance that runs would have written
        assert await sources.collections.latest("sales") == latest


async def test_nothing_stays_of_the_instances_of_a_source_that_was_dropped(tmp_path: Path) -> None:
    """One that comes under its name has none."""
    file = tmp_path / "sales.csv"
    file.write_text(LINES, "utf-8")
    async with Sources(tmp_path / "store") as sources:
        await sources.create(definition(file))
        async with ingesting(sources) as task:
            await said(sources, lambda each: each.upper > 0, "it has written something")
            assert await sources.drop("sales") is None
            async with asyncio.timeout(30):
                await task
        assert await sources.instances("sales") == []


def slow(*origin: Any) -> SourceReader:
    """Opens the source after a while, in which times go on at which nothing comes."""
    reader = reader_of(*origin)
    open_now = reader.open

    async def open_later(at: Any) -> None:
        await asyncio.sleep(2.5 * timed_messages.TICK_S)
        await open_now(at)

    reader.open = open_later  # type: ignore[method-assign] - this one alone
    return reader


@pytest.mark.parametrize("more", ["", "raw: true", "envelope: {type: upsert, key: [shop]}"])
async def test_an_instance_runs_only_once_its_first_messages_are_known_to_be_right(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """However late they come, and however often they are tried again; then it does, and the error is over."""
    monkeypatch.setattr(timed_messages, "TICK_S", 0.2)
    monkeypatch.setattr(instance, "reader_of", slow)
    file = tmp_path / "sales.csv"
    file.write_text(LINES.replace("1", "one"), "utf-8")
    async with Sources(tmp_path / "store") as sources:
        await sources.create(definition(file, more))
        seen: list[InstanceStatus] = []
        tried: set[int] = set()
        async with ingesting(sources):

            async def is_tried_again() -> bool:
                seen.extend(await sources.instances("sales"))
                tried.update(each.last_error_at for each in seen if each.last_error_at is not None)
                return len(tried) >= 3

            await until_async(is_tried_again, "it was tried three times")
            found = await sources.describe("sales")
            assert (found.health, found.error) == ("waiting", found.last_error)
            assert f"the message at 12 of {file}" in str(found.error)
            assert {each.health for each in seen} == {"starting", "waiting"}
            assert {each.error for each in seen if each.health == "waiting"} == {found.error}
            if "raw" in more:  # what is kept is not read again
                return
            file.write_text(LINES, "utf-8")
            running = await said(sources, lambda each: each.health == "running", "it runs")
            assert (running.error, running.last_error) == (None, found.error)
            found = await sources.describe("sales")
            assert (found.health, found.error, found.last_error) == ("running", None, running.last_error)


async def test_a_message_that_is_kept_raw_and_cannot_be_decoded_holds_up_the_time(tmp_path: Path) -> None:
    """All is read of the source, and so the lag in time says how far the collection is behind."""
    file = tmp_path / "sales.csv"
    file.write_text(LINES, "utf-8")
    async with Sources(tmp_path / "store") as sources:
        await sources.create(definition(file, "raw: true"))
        async with ingesting(sources):
            await said(sources, lambda each: each.health == "running", "it runs")
            file.write_text(f"{LINES}Celle,three\n", "utf-8")
            await said(sources, lambda each: each.error is not None, "it is held up")
            lags = []
            for _ in range(2):
                await asyncio.sleep(1.5 * TICK_S)
                found = await sources.describe("sales")
                assert (found.health, found.raw_sources["data"].lag) == ("waiting", 0)
                assert "nebuli source rebuild sales FILE" in str(found.error)
                assert found.lag_ms is not None
                lags.append(found.lag_ms)
            assert lags[1] - lags[0] >= 1000 * TICK_S
            columns = "schema: [{name: shop, type: string}, {name: amount, type: int64}]"
            mended = f"name: sales\nfrom: {{type: File, path: {file}}}\non_error: wait\n"
            await sources.rebuild(
                "sales",
                parse_definition(f"{mended}format: {{type: CSV, nulls: [three]}}\nraw: true\n{columns}"),
            )
            await said(sources, lambda each: each.health == "running" and each.error is None, "it runs")


@pytest.mark.parametrize("times", [3, 1000])
async def test_what_others_let_go_of_while_an_instance_begins_is_no_error_unless_it_is_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    """ST-ING-7: it begins from a later time, which its log says; it is told once it cannot be because of others."""
    monkeypatch.setattr(timed_messages, "TICK_S", 0.1)
    monkeypatch.setattr(attempts, "_FIRST_PAUSE_S", 0.02)
    caplog.set_level("INFO", "nebuli.ingestion")
    file = tmp_path / "sales.csv"
    file.write_text(LINES, "utf-8")
    begin, overtaken = Remap.begin, 0

    async def overtaken_begin(remap: Remap, upper: int) -> Any:
        nonlocal overtaken
        if overtaken < times:
            overtaken += 1

            async def recorded() -> int | None:
                found = (await remap.recorded())[0]
                return found if found > upper else None

            await remap.hold(await until_async(recorded, "another one has recorded more") - 1)
        return await begin(remap, upper)

    async with Sources(tmp_path / "store") as sources:
        await sources.create(definition(file), replicas=2)
        async with ingesting(sources, "first"):
            await said(sources, lambda each: each.health == "running", "the first one runs")
            monkeypatch.setattr(Remap, "begin", overtaken_begin)
            async with ingesting(sources, "other"):

                def is_known(each: InstanceStatus) -> bool:
                    return each.instance == "other" and (each.health == "running" or each.error is not None)

                found = await said(sources, is_known, "how the other one fares")
    said_so = [each.getMessage() for each in caplog.records if "restarted from scratch" in each.getMessage()]
    assert all("source sales, instance other: " in each for each in said_so)
    if times == 3:
        assert (found.health, found.error, found.last_error, len(said_so)) == ("running", None, None, 3)
    else:
        assert "/remap.r1 cannot be read at time" in str(found.error)
        assert len(said_so) == 4
