"""Steps whose rows are left out (``--skip-step``): noted at the state's place, the rows put into files."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, NamedTuple

from nebuli.dataflow import SteppedCircuit
from nebuli.dataflow.zset import added
from nebuli.steps.errors import StepNotSkipped, WindowsWritten
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.member.inputs.step_inputs import (
    LeftOut,
    LeftOutRows,
    ReplayableSources,
    put_into_file,
    rows_of_step,
)
from nebuli.steps.member.member_store import LOG, own_output_log
from nebuli.steps.member.saved_state import SavedState
from nebuli.store import Store
from nebuli.store.errors import NoteDamaged
from nebuli.store.notes import sealed, unsealed
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    import pyarrow as pa

    from nebuli.steps.logs.output_log import OutputLog
    from nebuli.steps.stepped_query import SteppedQuery
    from nebuli.store.notes import Notes
    from nebuli.store.store_url import StorePlace

SKIPPED = "skipped.json"
"""The note with these steps."""


class SkippedRows(NamedTuple):
    """Rows of an input that are left out of a step, and the file that has them, an Arrow IPC file.

    ``outputs`` had been written for the step by their members, while another one could not compute it: as all that
    is in an output, what came of the rows there stays. ``unfit``: these are the rows that fail on their own, and the
    others count. Without ``input`` and ``file`` the step has no rows, and event time does not end with it.
    """

    step: int
    input: str
    rows: int
    file: str
    outputs: list[str]
    unfit: bool = False

    @property
    def rule(self) -> LeftOut:
        """Return the rule for members."""
        return LeftOut(self.step, self.input, self.unfit)


class SkippedSteps:
    """Those of one state, whose lock is held and whose members do not run: they get them when they begin.

    ``folder`` is where files of rows are put.
    """

    def __init__(self, notes: Notes, folder: Path) -> None:
        self._notes = notes
        self._folder = folder

    async def known(self) -> list[SkippedRows]:
        """Return the rows that are left out. Raises StorageError, OSError."""
        said = await asyncio.to_thread(self._notes.read, SKIPPED)
        if said is None:
            return []
        try:
            return [SkippedRows(**each) for each in unsealed(said)["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            raise NoteDamaged(f"{self._notes.place}/{SKIPPED}", error) from error

    async def add(
        self, steps: Sequence[int], query: SteppedQuery, places: Sequence[StorePlace]
    ) -> list[SkippedRows]:
        """Leave out rows of these steps, durably; all that is left out then.

        Nothing happens for steps that are left out already. Relative paths of sources start where this process is.
        Raises StepNotSkipped, InputError, StorageError, OSError.
        """
        known = await self.known()
        new = sorted({*steps} - {each.step for each in known})
        if not new:
            return known
        async with AsyncExitStack() as stack:
            stores = [await stack.enter_async_context(Store.at(place)) for place in places]
            members = await _Members.of(query, stores)
            rows = {step: await members.unusable(step) for step in new}
        for step, (unfit, of_inputs) in rows.items():
            if not of_inputs:
                known.append(SkippedRows(step, "", 0, "", members.written(step)))
            for input_, batch in of_inputs.items():
                file = await asyncio.to_thread(put_into_file, self._folder, step, input_, batch)
                known.append(
                    SkippedRows(step, input_, batch.num_rows, str(file), members.written(step), unfit)
                )
        said = sealed({"rows": [each._asdict() for each in known]})
        await asyncio.to_thread(self._notes.write, SKIPPED, said)  # last: the files are there then
        return known


class _Members:
    """The contents of the stores of all members."""

    def __init__(
        self,
        query: SteppedQuery,
        logs: Sequence[InputLog],
        outputs: Sequence[OutputLog | None],
        checkpoint: int,
    ) -> None:
        self._query = query
        self._logs = logs
        self._outputs = outputs
        self._checkpoint = checkpoint

    @classmethod
    async def of(cls, query: SteppedQuery, stores: Sequence[Store]) -> _Members:
        circuit = SteppedCircuit(query.plan, 0)
        logs = [await InputLog.open(store, LOG, circuit.inputs) for store in stores]
        outputs = [
            await own_output_log(store, query.plan, member, circuit.outputs)
            for member, store in enumerate(stores)
        ]
        found = [{*await SavedState(store.state_store(LOG)).checkpoints()} for store in stores]
        common = set.intersection(*found)
        return cls(query, logs, outputs, max(each.step for each in common) if common else 0)

    async def unusable(self, step: int) -> tuple[bool, dict[str, pa.RecordBatch]]:
        """Those rows of a step that fail on their own, by input, or else all, and which it is.

        None of a step that has no rows, and that event time ends with.

        Raises StepNotSkipped, InputError, StorageError.
        """
        self._check(step)
        rows = await self._rows(step)
        if not rows:
            if not any([step in await log.ends() for log in self._logs]):
                raise StepNotSkipped(step, "it has no rows")
            if closed := await self._outputs_with_rows(step):
                raise WindowsWritten(step, closed)
            return False, {}
        rules = [LeftOut(step, input_, unfit=True) for input_ in rows]
        unfit = LeftOutRows(self._query.plan, rules)
        found = {input_: _together(unfit.left_out(step, input_, parts)) for input_, parts in rows.items()}
        failing = {input_: batch for input_, batch in found.items() if batch.num_rows}
        if failing:
            return True, failing
        return False, {input_: _together(parts) for input_, parts in rows.items()}

    def _check(self, step: int) -> None:
        last = max(log.last for log in self._logs)
        if step >= last:
            raise StepNotSkipped(step, f"that step has no rows yet, because the log ends below step {last}")
        if step < self._checkpoint:
            raise StepNotSkipped(
                step,
                f"its rows are already in the state, because its last checkpoint is at step {self._checkpoint}: "
                "retract these rows by a push with negative weights",
            )
        if all(log is None or log.last > step for log in self._outputs):
            raise StepNotSkipped(
                step,
                "it was computed, and its output may have been read: retract its rows by a push with negative weights",
            )

    async def _rows(self, step: int) -> dict[str, list[pa.RecordBatch]]:
        """Return the logged rows of a step, and the sources' rows for it, by input."""
        parts: dict[str, list[pa.RecordBatch]] = {}
        for log, feeds in zip(self._logs, self._query.feeds, strict=True):
            async with ReplayableSources(feeds, log, {}) as readings:
                for input_, rows in (await rows_of_step(log, readings, step)).items():
                    parts.setdefault(input_, []).extend(rows)
        return dict(sorted(parts.items()))

    def written(self, step: int) -> list[str]:
        """The outputs that have the step already."""
        return sorted(output for _, output in self._written(step))

    async def _outputs_with_rows(self, step: int) -> list[str]:
        return sorted(
            [output for log, output in self._written(step) if (await log.read(output, step)).num_rows]
        )

    def _written(self, step: int) -> list[tuple[OutputLog, str]]:
        logs = [log for log in self._outputs if log is not None and log.last > step]
        return [(log, output) for log in logs for output in log.schemas if output != TIME]


def _together(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    return added(batches, batches[0].schema)
