"""A stage whose source lacks messages, or whose decoder waits; for kills see ``test_recipe_under_faults``."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nebuli import Collections
from nebuli.ingestion.attempts import Told
from nebuli.ingestion.decoding.decoder import Decoder, Facts
from nebuli.ingestion.decoding.typed_columns import TypedColumns
from nebuli.ingestion.errors import AddressGone, IngestionError, SourceAway
from nebuli.ingestion.message_addresses import Messages
from nebuli.ingestion.readers.seen_files import SeenFiles
from nebuli.ingestion.recipe import timed_messages
from nebuli.ingestion.recipe.message_check import Checked
from nebuli.ingestion.recipe.reclocking import Remap
from nebuli.ingestion.recipe.stage import Stage, Target
from nebuli.ingestion.recipe.timed_messages import Reclocked
from nebuli.ingestion.recipe.turns import Turns
from tests.nebuli.ingestion.recipe.message_log import CARRIED, MessageLog, silent
from tests.nebuli.ingestion.recipe.pairs import Pairs, paired
from tests.support.waiting import until_async

NAMES = ("out", "out.waiting")
FIRST = [("a", 1), ("b", 2), ("a", 3)]
SECOND = [("c", 4), ("b", 5), ("d", 6)]


@pytest.fixture
async def collections(tmp_path: Path) -> AsyncIterator[Collections]:
    async with Collections(tmp_path / "store") as opened:
        for name in NAMES:
            await opened.create(name, CARRIED, timed="writers")
        yield opened


async def made(
    collections: Collections, log: MessageLog, decoder: Decoder | None = None, told: Told | None = None
) -> Stage:
    turns = Turns()
    remap = await Remap.opened(collections._store, "remap", collections.clock)
    typed = decoder or TypedColumns(CARRIED, source="out")
    work = collections._store.access.work
    decoders = {"data": Checked(typed, Pairs().check, work, raw_source="data", rendition="r1")}
    return Stage(
        collections._store,
        collections,
        Target("out", "r1"),
        Reclocked(remap, {"data": log.reader}, decoders, turns, told or silent, seen={"data": SeenFiles()}),
        decoders=decoders,
        envelope=Pairs(),
        facts=remap,
        turns=turns,
    )


@asynccontextmanager
async def running(stage: Stage) -> AsyncIterator[asyncio.Task[None]]:
    task = asyncio.create_task(stage.run())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def until_caught_up(stage: Stage, task: asyncio.Task[None]) -> None:
    async def there() -> bool:
        if task.done():
            task.result()
        return bool(stage.upper) and await stage.is_caught_up()

    await until_async(there, "all is written")


async def contents(collections: Collections, name: str = "out") -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in (await collections.snapshot(name)).to_pylist())


async def test_what_the_source_has_dropped_is_said(collections: Collections) -> None:
    """ST-ING-6: a source that was trimmed behind the next address is an error, and nothing is passed over."""
    log = MessageLog()
    log.add("p", FIRST)
    stage = await made(collections, log)
    async with running(stage) as task:
        await until_caught_up(stage, task)
    before = await contents(collections)
    log.add("p", SECOND)
    log.trim("p", 4)
    told: list[IngestionError | None] = []

    async def tell(error: IngestionError | None) -> None:
        told.append(error)

    async def said() -> bool:
        return len(told) > 1

    stage = await made(collections, log, told=tell)
    async with running(stage):
        await until_async(said, "it is said, and tried again")
        upper = stage.upper
        await until_async(lambda: asyncio.sleep(0, stage.upper > upper), "time goes on")
    assert isinstance(told[0], AddressGone)
    assert "below 4, and 3 comes next" in str(told[0])
    assert await contents(collections) == before


async def test_an_instance_that_lacks_the_first_messages_says_so(
    collections: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ST-ING-2, ST-ING-15: others have let the source go of them since it has begun, and before it reads."""
    monkeypatch.setattr(timed_messages, "_HELD_S", 0.0)
    log = MessageLog()
    log.add("p", FIRST)
    first, late = await made(collections, log), await made(collections, log)
    remap = await Remap.opened(collections._store, "remap", collections.clock)
    await remap.begin(0)
    await remap.mint({"data": {"p": len(FIRST)}})
    await late._begin()  # it knows that, and nothing of it is written

    async def is_let_go() -> bool:
        return log.trimmed.get("p", 0) == len(FIRST)

    async with running(first):
        await until_async(is_let_go, "the first messages are written, and let go of")
    log.add("p", SECOND)
    assert isinstance(late._messages, Reclocked)
    late._messages._ahead["data"].read.update(
        log.trimmed
    )  # where a source begins that has let go of the others
    reading = asyncio.create_task(late._messages.run())
    try:
        with pytest.raises(AddressGone, match="released the first messages"):
            await asyncio.wait_for(late._messages.next(), 60)
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    again = await made(collections, log)
    async with running(again) as task:
        await until_caught_up(again, task)
    assert await contents(collections) == paired(FIRST + SECOND)


class Asking(TypedColumns):
    """Asks somebody for each key, who may be away."""

    def __init__(self) -> None:
        super().__init__(CARRIED, source="out")
        self.is_away = False

    async def facts(self, messages: Messages, known: Mapping[str, bytes]) -> Facts:
        missing = set(messages.rows.column("key").to_pylist()) - {*known}
        if missing and self.is_away:
            raise SourceAway("the registry of the tests does not answer")
        return dict.fromkeys(missing, b"")


async def test_while_who_is_asked_for_facts_is_away_times_go_on(collections: Collections) -> None:
    """What came before is complete at them, and what waits comes once there is an answer; other parts need not wait."""
    log, decoder = MessageLog(), Asking()
    told: list[str] = []
    known, others = [("b", 9)], [("c", 4), ("d", 6), ("c", 7)]

    async def tell(error: IngestionError | None) -> None:
        told.append(str(error))

    log.add("p", FIRST)
    stage = await made(collections, log, decoder, tell)
    async with running(stage) as task:
        await until_caught_up(stage, task)
        decoder.is_away = True
        log.add("p", others)
        log.add("q", known)

        async def two_seconds_later() -> bool:
            assert not task.done()
            return stage.upper > at + 2000 and await contents(collections) == paired(FIRST + known)

        at = stage.upper
        await until_async(two_seconds_later, "times go on, and so does the other part")
        assert "the registry of the tests does not answer" in told
        decoder.is_away = False
        await until_caught_up(stage, task)
    assert await contents(collections) == paired(FIRST + known + others)
