"""What makes members in processes of their own do a step, or save what they know."""

from __future__ import annotations

import asyncio
import time

import pytest

from nebuli.circuits import Circuit
from nebuli.steps.member.calls.call_messages import log_name, owner
from nebuli.steps.protocol.triggers import TriggerSettings
from tests.nebuli.circuits.conftest import Rows, Serve, batch, counted
from tests.support.waiting import until_async

pytestmark = [pytest.mark.processes, pytest.mark.long]


def producer_at(member: int) -> str:
    """One whose rows go to this one of two members."""
    return next(name for name in map(str, range(100)) if owner(log_name("a", name), 2) == member)


async def test_rows_of_two_members_make_a_step_together(serve: Serve) -> None:
    """FT-TR-1, FT-TR-3, FT-TR-7: of ten, 4 + 6 make one step; without a clock there is none before."""
    settings = TriggerSettings(rows=10, checkpoint_s=None)
    async with serve(settings=settings) as here, Circuit(here.address) as circuit:
        few = [("x", number) for number in range(4)]
        many = [("y", number) for number in range(6)]
        assert await circuit.push("a", batch(*few), producer=producer_at(0), sequence=0) == 0
        await asyncio.sleep(0.3)
        assert (await circuit.status()).next_step == 0
        assert await circuit.push("a", batch(*many), producer=producer_at(1), sequence=0) == 0
        step, change = await anext(circuit.output("rows"))
        assert (step, counted(change)) == (0, Rows([*few, *many]))
        assert (await circuit.status()).next_step == 1


async def test_a_row_alone_makes_a_step_when_it_has_waited(serve: Serve) -> None:
    """FT-TR-2: of a thousand; not before."""
    settings = TriggerSettings(rows=1000, delay_s=0.5, checkpoint_s=None)
    async with serve(settings=settings) as here, Circuit(here.address) as circuit:
        began = time.monotonic()
        await circuit.push("a", batch(("x", 1)), producer="p", sequence=0)
        step, change = await anext(circuit.output("rows"))
        assert time.monotonic() - began >= 0.5
        assert (step, counted(change)) == (0, Rows([("x", 1)]))


async def test_the_clock_makes_steps_and_checkpoints_without_input(serve: Serve) -> None:
    """FT-TR-3, FT-TR-4: a step every 100 ms, which puts no checkpoint off."""
    settings = TriggerSettings(tick_s=0.1, checkpoint_s=0.2)
    async with serve(settings=settings) as here, Circuit(here.address) as circuit:
        began, first = time.monotonic(), (await circuit.status()).next_step

        async def ten_steps() -> bool:
            return (await circuit.status()).next_step >= first + 10

        await until_async(ten_steps, "ten steps without a row")
        passed = (await circuit.status()).next_step - first
        assert passed <= (time.monotonic() - began) / settings.tick_s + 2  # type: ignore[operator] - it has one

        async def saved() -> bool:
            return min((await circuit.status()).checkpoints, default=0) > first

        await until_async(saved, "two checkpoints without a row")
