"""What a circuit says where a member answers what hardly any test can have it answer."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from nebuli.circuits.circuit_calls import CircuitCalls
from nebuli.circuits.errors import CircuitFailed
from nebuli.steps.member.calls import call_messages as ask
from tests.support.told_members import pushed_query


class MemberConnection:
    """A way to a member for which a push is too large."""

    async def push_staged(self, *_: object) -> ask.TooLarge:
        return ask.TooLarge(1 << 31, 1 << 30)


async def test_who_stages_too_much_for_one_push_is_told_to_stage_less_and_not_to_push_again() -> None:
    run: Any = SimpleNamespace(
        plan=pushed_query(1).plan,
        external=["a"],
        on_failure=[],
        calls=SimpleNamespace(to=lambda *_: nullcontext(MemberConnection()), closed=False),
    )
    calls = CircuitCalls(run)
    with pytest.raises(CircuitFailed, match="with 2147483648 staged bytes, but at most 1073741824") as raised:
        await calls.push_staged("a", "spark query 7", 3, ["piece"], 1.0)
    await calls.close()
    assert "Limit its batches (maxFilesPerTrigger, maxBytesPerTrigger" in str(raised.value)
    assert "cannot continue with this checkpoint" in str(raised.value)
    assert "send number 3 again" not in str(raised.value)
