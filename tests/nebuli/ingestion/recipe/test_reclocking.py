"""Reclocking: the facts that are recorded with addresses; for times see ``test_recipe_under_faults``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nebuli import Collections
from nebuli.ingestion.recipe.reclocking import Remap


@pytest.fixture
async def collections(tmp_path: Path) -> AsyncIterator[Collections]:
    async with Collections(tmp_path / "store") as opened:
        yield opened


async def opened(collections: Collections) -> Remap:
    remap = await Remap.opened(collections._store, "remap", collections.clock)
    await remap.begin(0)
    return remap


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
