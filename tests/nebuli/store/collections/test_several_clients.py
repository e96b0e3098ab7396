"""What one client knows of a collection, after another one has changed it."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import aclosing

import pytest

from nebuli import Collections
from nebuli.store.collections.errors import CollectionMisused, RenditionRefused, RenditionUnknown, TooLate
from tests.nebuli.store.collections.rows import SCHEMA, batch, counted


async def become(client: Collections, rendition: str, *rows: tuple[str, int], shards: int = 1) -> int:
    await client.new_rendition("sales", rendition=rendition, shards=shards)
    await client.write("sales", [(1, batch(*rows))], 0, 2, rendition=rendition)
    return await client.handover("sales", rendition)


async def test_a_collection_that_was_made_anew_is_found(collections: Collections, other: Collections) -> None:
    await collections.create("sales", SCHEMA)
    await other.insert("sales", batch(("a", 1)))
    await collections.drop("sales")
    await collections.create("sales", SCHEMA)
    await other.insert("sales", batch(("b", 2)))
    assert counted(await other.snapshot("sales")) == Counter({("b", 2): 1})


async def test_who_inserts_does_not_need_a_rendition_that_was_dropped(
    collections: Collections, other: Collections
) -> None:
    await collections.create("sales", SCHEMA, keep=0)
    await other.insert("sales", batch(("a", 1)))
    await become(collections, "r2", ("b", 2))
    await collections.insert("sales", batch(("b", 2)))
    await collections.keep_house()
    assert [each.name for each in (await collections.describe("sales")).renditions] == ["r2"]
    await other.insert("sales", batch(("c", 3)))
    assert counted(await other.snapshot("sales")) == Counter({("b", 2): 2, ("c", 3): 1})


async def test_two_that_keep_house_at_once_drop_a_rendition_once(
    collections: Collections, other: Collections
) -> None:
    await collections.create("sales", SCHEMA, keep=0)
    for number in range(2, 8):
        await become(collections, f"r{number}", ("b", number))
        await collections.insert("sales", batch(("c", number)))
        await asyncio.gather(*(each.keep_house() for each in (collections, other) * 3))
        assert [each.name for each in (await other.describe("sales")).renditions] == [f"r{number}"]


async def test_a_rendition_that_was_made_anew_is_another(
    collections: Collections, other: Collections
) -> None:
    await collections.create("sales", SCHEMA)
    await collections.new_rendition("sales", rendition="r2")
    await other.write("sales", [(1, batch(("a", 1)))], 0, 2, rendition="r2")
    await collections.drop_rendition("sales", "r2")
    await collections.new_rendition("sales", rendition="r2", shards=4)
    rows = [("b", number) for number in range(20)]
    await other.write("sales", [(1, batch(*rows))], 0, 2, rendition="r2")
    await collections.handover("sales", "r2")
    for each in (collections, other):
        assert counted(await each.snapshot("sales")) == Counter(rows)


async def test_a_rendition_that_is_not_there_is_not_written(
    collections: Collections, other: Collections
) -> None:
    await collections.create("sales", SCHEMA)
    with pytest.raises(RenditionUnknown, match="it has r1"):
        await other.write("sales", [(1, batch(("a", 1)))], 0, 2, rendition="r2")
    await become(collections, "r2", ("a", 1))
    with pytest.raises(CollectionMisused, match="the store assigns the times"):
        await other.write("sales", [(2, batch(("a", 1)))], 2, 1 << 50, rendition="r2")


async def test_a_rendition_that_was_built_before_a_handover_is_refused(collections: Collections) -> None:
    await collections.create("sales", SCHEMA)
    built_from = await collections.insert("sales", batch(("a", 1)))
    await collections.new_rendition("sales", rendition="r3")
    await become(collections, "r2", ("b", 2))
    with pytest.raises(RenditionRefused, match="the collection has changed since"):
        await collections.handover("sales", "r3", built_from=built_from)


async def test_a_reader_that_has_lost_its_hold_is_told(collections: Collections, other: Collections) -> None:
    """It was asleep for longer than its lease: what it would read is another rendition's."""
    await collections.create("sales", SCHEMA, keep=0)
    start = await other.insert("sales", batch(("a", 1)))
    async with aclosing(other.subscribe("sales", start, snapshot=True)) as spans:
        await anext(spans)
        await become(collections, "r2", ("b", 2))
        for name in (await collections.describe("sales")).holds:
            if name.startswith("reader"):
                await collections.release("sales", name)
        await collections.insert("sales", batch(("c", 3)))
        await collections.keep_house()
        with pytest.raises(TooLate):
            await anext(spans)


async def test_whoever_inserts_what_is_staged_just_behind_another_is_told_the_same(
    collections: Collections, other: Collections, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also between its look at what is inserted and that at what is staged."""
    await collections.create("sales", SCHEMA)
    piece = await collections.stage("sales", batch(("a", 1)), producer="p", sequence=1)
    staged = other._open.staged
    taken = staged.taken
    first: list[int] = []

    async def taken_behind_another(*what):
        first.append(await collections.insert_staged("sales", [piece], producer="p", sequence=1))
        await collections._open.staged.drop(what[0], [piece], "p")  # and that is done
        return await taken(*what)

    monkeypatch.setattr(staged, "taken", taken_behind_another)
    assert [await other.insert_staged("sales", [piece], producer="p", sequence=1)] == first
    assert counted(await other.snapshot("sales")) == {("a", 1): 1}
