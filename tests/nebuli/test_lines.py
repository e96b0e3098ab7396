"""Lines of a process, of any length."""

from __future__ import annotations

import asyncio

import pytest

from nebuli.processes import lines

TOLD = "(a line, or a part of one, that is too long to be shown)"


@pytest.mark.parametrize("piece", [7, 1000])
async def test_what_comes_behind_a_line_that_is_too_long_is_read(piece: int) -> None:
    reader = asyncio.StreamReader(limit=16)
    data = b"first\n" + b"x" * 500 + b"\nlast \xff\nwithout an end"
    found = []

    async def read() -> None:
        found.extend([each async for each in lines(reader)])

    reading = asyncio.create_task(read())
    for start in range(0, len(data), piece):
        reader.feed_data(data[start : start + piece])
        await asyncio.sleep(0)
    reader.feed_eof()
    await reading
    assert found[0] == "first"
    assert TOLD in found
    assert found[-2:] == ["last \ufffd", "without an end"]
