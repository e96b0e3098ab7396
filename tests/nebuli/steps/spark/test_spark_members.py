"""How often a stage is begun again, and what is told of a driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from nebuli.steps.errors import SparkRefuses, StageEnds, TooFewSlots
from nebuli.steps.spark.spark_members import ATTEMPTS, SparkMembers
from nebuli.steps.spark.stage_messages import Attempt, Happened, Report, Stage
from netchannel import ReceiverServer
from tests.nebuli.steps.spark.orders import orders


class Driver:
    """One that says what it is told to; its reports are read as those of a process are."""

    def __init__(self) -> None:
        self.stdout = asyncio.StreamReader()
        self.stdin = self
        self.told: asyncio.Queue[Attempt] = asyncio.Queue()

    def says(self, *happened: Happened, text: str = "why") -> None:
        for each in happened:
            self.stdout.feed_data(Report(happened=each, text=text).model_dump_json().encode() + b"\n")

    def write(self, line: bytes) -> None:
        self.told.put_nowait(Attempt.model_validate_json(line))

    def is_closing(self) -> bool:
        return False

    async def drain(self) -> None: ...

    async def wait(self) -> int:
        return -9


class Case:
    """Members, of which there are two, and how much they have done."""

    def __init__(self, folder: Path, master: str = "spark://h:1") -> None:
        self.done = 0
        self.driver = Driver()
        lines: Any = [_Line(), _Line()]
        self.receiver = ReceiverServer()
        self.members = SparkMembers(
            master, orders(folder, 2), lines, self.receiver, folder, done=lambda: self.done
        )

    async def follow(self) -> str | None:
        driver: Any = self.driver
        async with asyncio.timeout(60):
            return await self.members._follow(driver)


class _Line:
    address: str | None = "127.0.0.1:1"

    def drop(self, why: str) -> None:
        self.why = why


async def test_a_stage_that_ends_four_times_while_nothing_is_done_ends_the_run(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.driver.says(*[Happened.FAILED] * ATTEMPTS, text="member 1: no space is left")
    with pytest.raises(
        StageEnds, match=r"ended 4 times within 600 s.*The last time: member 1: no space is left\. Fix"
    ):
        await case.follow()
    assert case.driver.told.qsize() == ATTEMPTS


async def test_a_stage_that_ends_any_number_of_times_while_steps_are_made_is_begun_again(
    tmp_path: Path,
) -> None:
    """As in a year."""
    case = Case(tmp_path)
    following = asyncio.create_task(case.follow())
    async with asyncio.timeout(60):
        assert (await case.driver.told.get()).slots_s == 45.0
        for _ in range(3 * ATTEMPTS):
            case.done += 1
            case.driver.says(Happened.FAILED)
            assert (await case.driver.told.get()).slots_s is None
    case.driver.says(Happened.ENDED)
    assert await following is None


@pytest.mark.parametrize(
    ("happened", "text", "error", "match"),
    [
        (Happened.SHORT, "1", TooFewSlots, "2 members hold 2 slots .* spark://h:1 has 1 after 45 s: give"),
        (Happened.REFUSED, "no master", SparkRefuses, "no session of Spark at spark://h:1: no master. Check"),
    ],
)
async def test_what_stands_in_the_way_at_the_start_is_told(
    happened: Happened, text: str, error: type[Exception], match: str, tmp_path: Path
) -> None:
    case = Case(tmp_path)
    case.driver.says(happened, text=text)
    with pytest.raises(error, match=match):
        await case.follow()


async def test_a_session_that_cannot_be_had_after_one_that_was_is_begun_again(tmp_path: Path) -> None:
    """As where Java is killed while it begins once more; nothing need have been done before."""
    case = Case(tmp_path)
    case.driver.says(Happened.FAILED, Happened.REFUSED, text="Java has exited")
    assert await case.follow() == "Java has exited"


async def test_who_waits_for_members_is_told_the_error_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None that is in a group, beside the tasks that hear members."""
    case = Case(tmp_path)
    case.driver.says(Happened.SHORT, text="1")

    @asynccontextmanager
    async def driver(_: SparkMembers, stage: Stage) -> AsyncIterator[Driver]:
        yield case.driver

    monkeypatch.setattr(SparkMembers, "_process", driver)
    async with asyncio.timeout(60), case.receiver, case.members:
        with pytest.raises(TooFewSlots):
            await case.members.failed()


async def test_a_driver_that_is_killed_or_loses_its_session_is_one_that_has_ended(tmp_path: Path) -> None:
    case = Case(tmp_path)
    case.driver.stdout.feed_eof()
    assert await case.follow() == "killed by SIGKILL"
    case = Case(tmp_path)
    case.driver.says(Happened.GONE, text="Java is gone")
    assert await case.follow() == "Java is gone"
