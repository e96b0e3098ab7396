"""`LeftOutRows`: which rows of steps are left out, as no step can be computed with them; and files of these rows."""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import pyarrow as pa

from nebuli.dataflow.steps.trial import Trial
from nebuli.durable_files import sync_directory
from nebuli.steps.logs.zset_sums import added

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from nebuli.steps.errors import FailedStep
    from nebuli.steps.logs.input_log import InputLog
    from nebuli.steps.member.inputs.readings import ReplayableSources
    from placement.stepped_plan import SteppedPlan


class LeftOut(NamedTuple):
    """Rows of an input in a step; ``unfit``: only those that a `Trial` finds unfit, and otherwise all.

    No ``input``: the step has no rows, and event time does not end with it.
    """

    step: int
    input: str
    unfit: bool = False


class LeftOutRows:
    """The rows of ``plan``'s inputs that these rules leave out, the same wherever it is computed."""

    def __init__(self, plan: SteppedPlan, rules: Iterable[LeftOut] = ()) -> None:
        self._plan = plan
        self._rules: dict[int, dict[str, bool]] = {}
        for step, input_, unfit in rules:
            self._rules.setdefault(step, {})[input_] = unfit

    def __contains__(self, step: int) -> bool:
        return step in self._rules

    def whole(self, step: int) -> bool:
        """Return True if all rows of an input are left out of a step. Event time does not end with such a step."""
        return not all(self._rules.get(step, {}).values())

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


def rules_for(plan: SteppedPlan, failed: FailedStep) -> list[LeftOut]:
    """Rules for a step that failed: the rows that fail on their own, if the operator identifies them; otherwise all."""
    unfit = failed.operator in Trial(plan).tried
    return [LeftOut(failed.step, input_, unfit) for input_ in failed.inputs]


async def rows_of_step(
    log: InputLog, readings: ReplayableSources, step: int
) -> dict[str, list[pa.RecordBatch]]:
    """Return the logged rows of a step, and the sources' rows for it, by input; only inputs with rows.

    Raises InputError, StorageError.
    """
    if not log.first <= step < log.last:
        return {}
    parts = {input_: [rows] for input_, rows in (await log.logged(step)).items()}
    for input_, sources in (await readings.rows(step)).items():
        for each in sources.values():
            parts.setdefault(input_, []).extend(each.rows)
    readings.leave_replay()
    return {input_: rows for input_, rows in parts.items() if any(each.num_rows for each in rows)}


def put_into_file(folder: Path, step: int, input_: str, rows: pa.RecordBatch) -> Path:
    """Write rows that are left out into a file of their own, durably: an Arrow IPC file. Raises OSError."""
    file = folder / f"skipped-{step}-{quote(input_, safe='')}.arrow"
    aside = file.with_name(f".{file.name}.new")
    with aside.open("wb") as opened:
        with pa.ipc.new_file(opened, rows.schema) as writer:
            writer.write_batch(rows)
        opened.flush()
        os.fsync(opened.fileno())
    aside.rename(file)
    sync_directory(folder)
    return file
