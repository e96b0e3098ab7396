"""Stores in a folder of the test's, with several open at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nebuli.store import Store
from tests.support.stores import PLACES, Place, place_of, store_at


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> Place:
    """Where the store is: in a folder, or without a disk that is shared."""
    return place_of(request)


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    async with store_at(place) as opened:
        yield opened


@pytest.fixture
async def other(place: Place, store: Store) -> AsyncIterator[Store]:
    """The same store, opened once more, as another process would."""
    async with store_at(place) as opened:
        yield opened
