"""`StepInputs`: what counts for a member's steps, of what was logged and of sources that are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.store.errors import LogTaken

if TYPE_CHECKING:
    from collections.abc import Container, Mapping

    import pyarrow as pa

    from nebuli.dataflow.steps.origins import SourceRows
    from nebuli.steps.logs.input_log import InputLog
    from nebuli.steps.member.inputs.readings import ReplayableSources


class StepInputs:
    """What ``log`` says that counts, with the rows that it has, and those that ``readings`` have.

    Of steps that are ``skipped`` only these count: what was logged for them is left out.
    """

    def __init__(self, log: InputLog, readings: ReplayableSources, skipped: Container[int] = ()) -> None:
        self._log = log
        self._skipped = skipped
        self._readings = readings
        self._last = log.last

    def leaves_out(self, step: int) -> bool:
        """Whether the rows that were logged for a step are left out of it."""
        return step in self._skipped

    def check_whose(self) -> None:
        """Raise LogTaken where another process has fixed steps: what was read here is not what counts for them."""
        if self._log.last > self._last:
            raise LogTaken(f"input log {self._log.name}")

    async def of(
        self, step: int, *, replayed: bool, ended: bool
    ) -> tuple[Mapping[str, pa.RecordBatch], Mapping[str, Mapping[str, SourceRows]]]:
        """What counts for a step, as a circuit takes it: a Z-set for each input, and what sources have besides.

        The next step is fixed by it, with all that has come in.

        ``replayed``: with nothing, as others had that step already. ``ended``: all inputs have ended. That it counts is
        durable, whatever becomes of this process. Raises StorageError, InputError; LogTaken as `check_whose`.
        """
        self.check_whose()
        self._last = max(self._last, step + 1)  # also where it fails, and has happened
        if not replayed:
            self._readings.leave_replay()
        logged = await self._logged(step, replayed=replayed, ended=ended)
        if step in self._skipped:
            logged = {}
        inputs = {key: rows for key, rows in logged.items() if rows.num_rows}
        return inputs, await self._readings.rows(step)

    async def _logged(self, step: int, *, replayed: bool, ended: bool) -> dict[str, pa.RecordBatch]:
        if step < self._log.last:
            return await self._log.fix(step)
        if ended and self._log.ended_at is None:  # what follows the end says nothing of it
            return await self._log.end(step, await self._readings.passages())
        if replayed:
            await self._log.pass_over(step)
            return await self._log.fix(step)
        return await self._log.fix(step, await self._readings.passages())
