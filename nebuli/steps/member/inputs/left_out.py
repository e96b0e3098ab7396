"""`LeftOutRows`: which rows of steps are left out, as no step can be computed with them."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

from nebuli.dataflow.steps.trial import Trial
from nebuli.steps.logs.zset_sums import added

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import pyarrow as pa

    from placement.stepped_plan import SteppedPlan


class LeftOut(NamedTuple):
    """Rows of an input in a step; ``unfit``: only those that a `Trial` tells are unfit, and otherwise all."""

    step: int
    input: str
    unfit: bool = False


class LeftOutRows:
    """What of the rows of ``plan``'s inputs is left out by these rules, the same wherever it is worked out."""

    def __init__(self, plan: SteppedPlan, rules: Iterable[LeftOut] = ()) -> None:
        self._plan = plan
        self._rules: dict[int, dict[str, bool]] = {}
        for step, input_, unfit in rules:
            self._rules.setdefault(step, {})[input_] = unfit

    def __contains__(self, step: int) -> bool:
        return step in self._rules

    def inputs(self, step: int) -> Mapping[str, bool]:
        """The inputs of which rows are left out, each with whether these are the unfit ones alone."""
        return self._rules.get(step, {})

    @cached_property
    def _trial(self) -> Trial:
        return Trial(self._plan)

    def kept(self, step: int, input_: str, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The rows that are not left out."""
        return self._parted(step, input_, batches)[0]

    def left_out(self, step: int, input_: str, batches: Sequence[pa.RecordBatch]) -> Sequence[pa.RecordBatch]:
        """The rows that are left out."""
        return self._parted(step, input_, batches)[1]

    def _parted(
        self, step: int, input_: str, batches: Sequence[pa.RecordBatch]
    ) -> tuple[Sequence[pa.RecordBatch], Sequence[pa.RecordBatch]]:
        unfit = self.inputs(step).get(input_)
        if unfit is None or not batches:
            return batches, ()
        if not unfit:
            return (), batches
        fit, rest = self._trial.parted(input_, added(batches, batches[0].schema))
        return [fit], [rest]
