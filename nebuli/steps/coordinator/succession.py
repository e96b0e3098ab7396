"""Succession: members take the place of others."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from nebuli.steps.errors import MembersFailed
from nebuli.steps.protocol.errors import CheckpointNotMade
from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Sequence

    from nebuli.steps.coordinator.generation import Generation

_BEGIN_S = 60.0
"""How long processes may take to begin, on a busy machine."""
_REST_S = 60.0
"""How long a step may take that is to be the last before."""
_LOST = "a member was lost while it handed over its state"
_BROKEN = "the query is ending after an error"
_Value = TypeVar("_Value")


class GivenUp(Exception):
    """Others do not take the place of the current members; the message has the reason."""


async def given_ahead(before: Generation, after: Generation) -> tuple[Sequence[str], int]:
    """Begin members that take over, and have those before them give most of what they have while they continue.

    Returns the addresses at which they take over, and the epoch in which it was given. A checkpoint comes first: those
    that are made while the state is given write little more than what is new then, and members that take over do not
    wait for it. Raises GivenUp.
    """
    return await _unless([_say(before.broken.wait(), _BROKEN)], _given_ahead(before, after))


async def _given_ahead(before: Generation, after: Generation) -> tuple[Sequence[str], int]:
    await saved(before)
    addresses = await begun(after)
    epoch = before.coordinator.epoch
    disturbances = [_ended(after), _say(before.coordinator.out_of_step(), _LOST)]
    order = _order(after)
    giving = asyncio.gather(*(each.give_ahead(order, tuple(addresses)) for each in before.calls))
    try:
        await _unless(disturbances, giving)
    except StorageError as error:
        raise GivenUp(str(error)) from error
    return addresses, epoch


async def saved(before: Generation) -> None:
    """Have members make a checkpoint, once they are in step. Raises GivenUp if they are not in time."""
    try:
        async with asyncio.timeout(_REST_S):
            await before.coordinator.caught_up()
    except TimeoutError:
        raise GivenUp(f"the existing members did not reach the same step within {_REST_S:g} s") from None
    # If not, it is logged why; what it would have saved is given all the same.
    with suppress(CheckpointNotMade):
        await before.coordinator.checkpoint()


async def begun(after: Generation) -> Sequence[str]:
    """Begin members that take over: the addresses at which they do. Raises GivenUp."""
    await after.start()
    failed = _given_up(after.members.failed())
    try:
        async with asyncio.timeout(_BEGIN_S):
            return await _unless([failed, _ended(after)], after.members.taking())
    except TimeoutError:
        raise GivenUp(f"the new members did not start within {_BEGIN_S:g} s") from None


async def handed_over(before: Generation, after: Generation, addresses: Sequence[str], epoch: int) -> int:
    """Have members rest, and give the rest of what they have, so that others have all of it durably; the next step.

    Until `Generation.resume`, they rest. Raises GivenUp, StorageError; also where another epoch than the one has begun
    in which they have `given_ahead`.
    """
    return await _unless([_say(before.broken.wait(), _BROKEN)], _handed_over(before, after, addresses, epoch))


async def _handed_over(before: Generation, after: Generation, addresses: Sequence[str], epoch: int) -> int:
    try:
        async with asyncio.timeout(_REST_S):
            step = await before.rest()
    except TimeoutError:
        raise GivenUp(
            f"the members did not pause at the same step within {_REST_S:g} s; start the circuit if it is paused"
        ) from None
    if before.coordinator.epoch != epoch:
        raise GivenUp(_LOST)
    disturbances = [_ended(after), _say(before.coordinator.disturbed(), _LOST)]
    order = _order(after)
    giving = asyncio.gather(*(each.hand_over(order, tuple(addresses)) for each in before.calls))
    steps: list[int] = await _unless(disturbances, giving)
    if {*steps} != {step}:
        raise GivenUp(f"members are at different steps: {steps}, and the coordinator is at {step}")
    return step


def _order(after: Generation) -> bytes:
    assert after.layout is not None, "they follow others"
    return after.layout.model_dump_json(by_alias=True).encode()


async def _ended(after: Generation) -> None:
    await after.members.ended.wait()
    raise GivenUp(after.members.why_ended)


async def _say(happened: Awaitable[Any], why: str) -> None:
    await happened
    raise GivenUp(why)


async def _given_up(failed: Awaitable[None]) -> None:
    try:
        await failed
    except MembersFailed as error:
        raise GivenUp(str(error)) from error


async def _unless(others: Sequence[Awaitable[None]], work: Awaitable[_Value]) -> _Value:
    """Do ``work``, unless one of ``others``, which only fail, fails first."""
    task = asyncio.ensure_future(work)
    watching = [asyncio.ensure_future(each) for each in others]
    try:
        await asyncio.wait({task, *watching}, return_when=asyncio.FIRST_COMPLETED)
        for each in watching:
            if each.done():
                each.result()
        return await task
    finally:
        task.cancel()
        for each in watching:
            each.cancel()
        await asyncio.gather(task, *watching, return_exceptions=True)
