"""Stores in a folder of the test's, with several open at the same time."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from nebuli.storage import Store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def store(folder: Path) -> AsyncIterator[Store]:
    async with Store.in_folder(folder) as opened:
        yield opened


@pytest.fixture
async def other(folder: Path, store: Store) -> AsyncIterator[Store]:
    """The same store, opened once more, as another process would."""
    async with Store.in_folder(folder) as opened:
        yield opened
