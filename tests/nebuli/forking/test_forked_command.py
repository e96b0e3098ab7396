"""Commands that are forked from the template of this process."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nebuli.forking.forked_command import ForkedCommand
from nebuli.forking.own_template import own_spawner


@pytest.mark.processes
def test_a_command_starts_though_an_event_loop_before_was_closed_in_the_middle(tmp_path: Path) -> None:
    async def entered() -> None:
        own_spawner().enter()

    async def version() -> int:
        command = await ForkedCommand.start(["--version"], tmp_path)
        try:
            return await asyncio.wait_for(command.process.ended, 30)
        finally:
            command.close()

    asyncio.run(entered())
    assert asyncio.run(version()) == 0
