"""A query's state from those of its fragments."""

from __future__ import annotations

import pytest

from nebuli.control.global_state import GlobalState, combined
from nebuli.rpc.status import FragmentState

REGISTERED, RUNNING, FINISHED, FAILED, STOPPED = FragmentState
UNREACHABLE = None


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        ([RUNNING, FAILED, UNREACHABLE], GlobalState.FAILED),
        ([STOPPED, FAILED], GlobalState.FAILED),
        ([FINISHED, UNREACHABLE], GlobalState.UNREACHABLE),
        ([STOPPED, UNREACHABLE], GlobalState.UNREACHABLE),
        ([STOPPED, STOPPED], GlobalState.STOPPED),
        ([STOPPED, FINISHED], GlobalState.STOPPED),
        ([STOPPED, RUNNING], GlobalState.PARTIALLY_STOPPED),
        ([STOPPED, REGISTERED], GlobalState.PARTIALLY_STOPPED),
        ([REGISTERED, REGISTERED], GlobalState.REGISTERED),
        ([REGISTERED, RUNNING], GlobalState.RUNNING),
        ([RUNNING, FINISHED], GlobalState.RUNNING),
        ([REGISTERED, FINISHED], GlobalState.RUNNING),
        ([FINISHED, FINISHED], GlobalState.FINISHED),
    ],
)
def test_the_first_state_that_fits(states: list[FragmentState | None], expected: GlobalState) -> None:
    """DP-4: Failed, Unreachable, Stopped, PartiallyStopped, Registered, Running, Finished."""
    assert combined(states) is expected
    assert combined(reversed(states)) is expected
