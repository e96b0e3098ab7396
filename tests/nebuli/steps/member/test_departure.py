"""When a member may go: when it is dismissed, or has stopped and is alone for long."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from nebuli.steps.member.departure import until_dismissed
from nebuli.steps.protocol import messages as say
from tests.support.told_members import Members, Told, pushed_query


async def opened(told: Told, epoch: int, *, anew: bool = False) -> None:
    told.tell(say.Greet(epoch))
    if anew:
        await told.hear(say.Refused)
    said = await told.hear(say.Joined)
    await told.open(epoch, said.checkpoints[-1], [said.address])
    await told.hear(say.Opened)


async def test_a_member_that_has_stopped_takes_part_again_and_goes_when_it_is_dismissed(
    tmp_path: Path,
) -> None:
    async with asyncio.timeout(60), Members(pushed_query(1), tmp_path) as members:
        member, lines = members.members[0], members.coordinator_lines[0]
        going = asyncio.create_task(until_dismissed(member, lines, alone_s=0.05))
        async with members.told() as told:
            for epoch in (1, 2):
                await opened(told, epoch, anew=epoch > 1)
                assert not member.closed.is_set()
                told.tell(say.AskStop(epoch, 0))
                await told.hear(say.IsStopped)
                assert member.closed.is_set()
            assert not going.done(), "as long as a coordinator is there, it waits"
            told.tell(say.Dismiss(2))
            await told.hear(say.Left)
            await going


async def test_a_member_that_has_stopped_goes_when_no_coordinator_was_there_for_long(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with asyncio.timeout(60), Members(pushed_query(1), tmp_path) as members:
        member, lines = members.members[0], members.coordinator_lines[0]
        going = asyncio.create_task(until_dismissed(member, lines, alone_s=0.05))
        async with members.told() as told:
            await opened(told, 1)
        await lines.deserted(0.2)
        assert not going.done(), "it has not stopped, and its coordinator may be long in coming back"
        async with members.told() as told:
            await opened(told, 2, anew=True)
            told.tell(say.AskStop(2, 0))
            await told.hear(say.IsStopped)
        await going
        assert (
            "has stopped cleanly, and ends, because no coordinator has been connected for 0.05 s"
            in caplog.text
        )
