"""The processes of members on this machine: how often they start, and what they print."""

from __future__ import annotations

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, Mock

import pytest

from nebuli.steps.errors import MembersEnd
from nebuli.steps.local import local_members
from nebuli.steps.local.local_members import RESTARTS, LocalMembers


async def ending(*_: object) -> Any:
    """Return a command whose process has printed an error and ended."""
    loop = asyncio.get_running_loop()
    pid, ended, stderr = loop.create_future(), loop.create_future(), asyncio.StreamReader()
    pid.set_result(1)
    ended.set_result(1)
    stderr.feed_data(b"Error: no space is left\n")
    stderr.feed_eof()
    process = SimpleNamespace(pid=pid, ended=ended, send_signal=Mock(), kill=Mock())
    return SimpleNamespace(process=process, stderr=stderr, tell=AsyncMock(), close=Mock())


async def test_an_error_that_ends_each_process_of_a_member_is_printed_once_and_in_the_last_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = AsyncMock(side_effect=ending)
    monkeypatch.setattr(local_members.ForkedCommand, "start", start)
    order: Any = Mock(member=0)
    async with LocalMembers([order], [Mock()], Path(), lambda: 0) as members:
        with pytest.raises(MembersEnd, match=r"5 times[^\n]*\nno space is left$"):
            await asyncio.wait_for(members.failed(), 10)
    assert start.await_count == RESTARTS
    assert capsys.readouterr().err == "member 0: Error: no space is left\n"
