"""`StepInputs`: what counts for a member's steps, of what was logged and of sources that are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.storage.logs.sums import added

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pyarrow as pa

    from nebuli.members.inputs.readings import Readings
    from nebuli.storage.logs.input_log import InputLog


class StepInputs:
    """What ``log`` says that counts, with the rows that it has, and those that ``readings`` have."""

    def __init__(self, log: InputLog, readings: Readings) -> None:
        self._log = log
        self._readings = readings

    async def of(self, step: int, *, replayed: bool, ended: bool) -> Mapping[str, pa.RecordBatch]:
        """What counts for a step, a Z-set for each input; the next one is fixed by it, with all that has come in.

        ``replayed``: with nothing, as others had that step already. ``ended``: all inputs have ended. That it counts is
        durable, whatever becomes of this process. Raises StorageError, InputError.
        """
        if not replayed:
            self._readings.leave_replay()
        inputs = await self._logged(step, replayed=replayed, ended=ended)
        for key, rows in (await self._readings.rows(step)).items():
            inputs[key] = added([inputs[key], *rows] if inputs[key].num_rows else rows, inputs[key].schema)
        return inputs

    async def _logged(self, step: int, *, replayed: bool, ended: bool) -> dict[str, pa.RecordBatch]:
        if step < self._log.last:
            return await self._log.fix(step)
        if ended and self._log.ended_at is None:  # what follows the end says nothing of it
            return await self._log.end(step, self._readings.passages())
        if replayed:
            await self._log.pass_over(step)
            return await self._log.fix(step)
        return await self._log.fix(step, self._readings.passages())
