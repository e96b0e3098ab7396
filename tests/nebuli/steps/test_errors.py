"""Reasons that are read again where they are reported."""

from __future__ import annotations

import pytest

from nebuli.dataflow import DataflowError
from nebuli.steps.errors import FailedStep, StepFailed, failed_step_in


@pytest.mark.parametrize("inputs", [["a"], ["a", "b c"]])
@pytest.mark.parametrize("operator", ["p", "sums of all", None])
def test_a_failed_step_is_found_in_its_reason(inputs: list[str], operator: str | None) -> None:
    reason = str(StepFailed(7, str(DataflowError("divide by zero in 1 // n", operator)), inputs))
    found = failed_step_in(f"{reason} (at member 3). When that is fixed, start the query again")
    assert found == FailedStep(7, inputs, operator)


@pytest.mark.parametrize("reason", ["", "member 1 is lost: step 3", str(StepFailed(None, "a sum", ["a"]))])
def test_other_reasons_name_no_step(reason: str) -> None:
    assert failed_step_in(reason) is None
