"""Collections in a folder of the test's, opened as several processes would open them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from nebuli import Collections


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
async def stack() -> AsyncIterator[AsyncExitStack]:
    async with AsyncExitStack() as entered:
        yield entered


@pytest.fixture
async def collections(folder: Path, stack: AsyncExitStack) -> Collections:
    return await stack.enter_async_context(Collections(folder, tick_s=0.05))


@pytest.fixture
async def other(folder: Path, collections: Collections, stack: AsyncExitStack) -> Collections:
    """The same store once more, as another process has it."""
    return await stack.enter_async_context(Collections(folder, tick_s=0.05))
