"""Reclocking: what is recorded, and what becomes available by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from itertools import chain
from pathlib import Path

import pytest

from nebuli import Collections
from nebuli.ingestion.decoding.typed_columns import TypedColumns
from nebuli.ingestion.message_addresses import Messages
from nebuli.ingestion.readers.seen_files import SeenFiles
from nebuli.ingestion.recipe.message_check import Checked
from nebuli.ingestion.recipe.reclocking import Remap
from nebuli.ingestion.recipe.timed_messages import Reclocked
from nebuli.ingestion.recipe.turns import Turns
from tests.nebuli.ingestion.recipe.message_log import CARRIED, MessageLog, silent


class Hand:
    """A clock that is moved by hand."""

    now = 1000

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def hand() -> Hand:
    return Hand()


@pytest.fixture
async def collections(tmp_path: Path, hand: Hand) -> AsyncIterator[Collections]:
    async with Collections(tmp_path / "store", now=hand) as opened:
        yield opened


async def opened(collections: Collections, upper: int = 0) -> Remap:
    remap = await Remap.opened(collections._store, "remap", collections.clock)
    await remap.begin(upper)
    return remap


def bindings(remap: Remap) -> list[tuple[int, dict[str, int]]]:
    found = []
    while (binding := remap.next()) is not None:
        found.append((binding.time, dict(binding.addresses["data"])))
    return found


async def test_addresses_go_on_and_times_follow_the_clock(collections: Collections, hand: Hand) -> None:
    """ST-ING-10: an address may stand still and never goes back; times go on also while the clock is set back."""
    remap = await opened(collections)
    created = collections.clock.upper
    hand.now = 2000
    await remap.mint({"data": {"": 5}})
    hand.now = 1500
    await remap.mint({"data": {"": 3}})
    await remap.mint({"data": {"": 9}})
    hand.now = 3000
    await remap.mint({"data": {"": 9}})
    assert created <= 2000
    assert bindings(remap) == [(2000, {"": 5}), (2002, {"": 9})]
    assert remap.upper == 3001, "nothing came until then"
    assert collections.clock.upper == 3001, "nobody who reads what comes of it has to wait"


async def test_who_is_not_first_goes_by_what_was_recorded(collections: Collections, hand: Hand) -> None:
    """ST-ING-16: both have read differently far; the binding of the first is that of both."""
    first, second = await opened(collections), await opened(collections)
    hand.now = 2000
    await asyncio.gather(first.mint({"data": {"": 7}}), second.mint({"data": {"": 4}}))
    await first.look()
    told = bindings(first)
    assert told == bindings(second)
    assert len(told) == 1
    (at, addresses) = told[0]
    assert at == 2000
    assert addresses in ({"": 7}, {"": 4})


async def test_a_fact_that_another_one_has_recorded_is_used(collections: Collections) -> None:
    """ST-VAR-2: of two that were found for a key the first counts, for all, and whoever begins later."""
    first, second = await opened(collections), await opened(collections)
    await asyncio.gather(
        first.mint({"data": {"": 7}}, {"draw": b"heads"}), second.mint({"data": {"": 4}}, {"draw": b"tails"})
    )
    await first.look()
    assert first.facts == second.facts
    assert first.facts in ({"draw": b"heads"}, {"draw": b"tails"})
    kept = dict(first.facts)
    await second.mint({"data": {"": 9}}, {"draw": b"edge"})
    assert second.facts == kept
    assert (await opened(collections)).facts == kept


async def told(
    collections: Collections, log: MessageLog, upper: int, until: int
) -> list[tuple[int, list[int]]]:
    """By time, the values of the messages that are available then."""
    remap = await Remap.opened(collections._store, "remap", collections.clock)
    typed = TypedColumns(CARRIED, source="a source")
    work = collections._store.access.work
    decoders = {"data": Checked(typed, lambda _: None, work, raw_source="data", rendition="r1")}
    turns = Turns(is_first=False, patience_s=60)
    messages = Reclocked(remap, {"data": log.reader}, decoders, turns, silent, seen={"data": SeenFiles()})
    await messages.begin(upper)
    reading = asyncio.create_task(messages.run())
    found = []
    try:
        async with asyncio.timeout(10):
            end = 0
            while end < until:
                span = await messages.next()
                end = span.upper
                found += [(each.time, [*chain(*map(values, each.messages["data"]))]) for each in span.times]
    finally:
        reading.cancel()
        await messages.close()
    return [each for each in found if each[1]]


def values(some: Messages) -> list[int]:
    return some.rows.column("value").to_pylist()


async def test_a_message_is_available_at_the_first_time_that_covers_it(
    collections: Collections, hand: Hand
) -> None:
    """ST-ING-11: addresses 1 and 3 are of time 1000, those behind of the next; whoever asks again is told the same."""
    log = MessageLog({"a": [(1, ("x", 1)), (3, ("x", 3)), (5, ("x", 5)), (6, ("x", 6)), (9, ("x", 9))]})
    remap = await opened(collections)
    hand.now = 2000
    await remap.mint({"data": {"a": 4}})
    hand.now = 3000
    await remap.mint({"data": {"a": 6}})
    hand.now = 4000
    await remap.mint({"data": {"a": 10}})
    expected = [(2000, [1, 3]), (3000, [5]), (4000, [6, 9])]
    assert await told(collections, log, 0, 4001) == expected, (
        "a batch that was read is split where a time ends"
    )
    assert await told(collections, log, 0, 4001) == expected
    for upper, left in ((2001, 1), (3000, 1), (3001, 2)):
        assert await told(collections, log, upper, 4001) == expected[left:]
    assert log.opened == [{}, {}, {"a": 4}, {"a": 4}, {"a": 6}], "ST-ING-5, ST-ING-15: where the remap says"
