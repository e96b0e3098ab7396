"""The wait for a query's end, where Spark's own rules for waiting are the difficulty."""

from __future__ import annotations

import pytest

from spark_bridge import stop_at_end


class GoesOn:
    """A query that has made no progress yet, and waits as Spark does: for whole milliseconds, and at least one."""

    lastProgress = None  # noqa: N815 - Spark's name

    def awaitTermination(self, timeout: float) -> bool:  # noqa: N802 - Spark's name
        if int(timeout * 1000) <= 0:
            raise ValueError("requirement failed: Timeout has to be positive")
        return False


@pytest.mark.parametrize("timeout_s", [0.0, 0.0005, 0.0015])
def test_what_is_left_of_a_wait_may_be_less_than_spark_can_wait(timeout_s):
    assert stop_at_end(GoesOn(), timeout_s) is False
