"""Lines of several workers, told in the order of their clocks."""

from __future__ import annotations

import asyncio

import pytest

from nebuli.cli import line_merge
from nebuli.cli.line_merge import Merged


async def test_a_line_that_comes_later_and_is_earlier_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(line_merge, "HELD_S", 0.05)
    told: list[str] = []
    lines = Merged(told.append)
    lines.put(3, "third")
    lines.put(1, "first")
    lines.put(2, "second")
    async with asyncio.timeout(60):
        while len(told) < 3:  # noqa: ASYNC110 - told by a callback
            await asyncio.sleep(0.01)
    lines.put(5, "fifth")
    lines.put(4, "fourth")
    await lines.close()
    assert told == ["first", "second", "third", "fourth", "fifth"]
