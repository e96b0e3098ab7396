"""`StepInputs`: what counts for a member's steps, of what was logged and of sources that are read again."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.dataflow.steps.origins import SourceRows
from nebuli.steps.logs.addresses import NOTHING
from nebuli.store.errors import LogTaken

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import pyarrow as pa

    from nebuli.steps.logs.input_log import InputLog
    from nebuli.steps.member.inputs.left_out import LeftOutRows
    from nebuli.steps.member.inputs.readings import ReplayableSources


class StepInputs:
    """The input that counts by ``log``, with its rows, and those of ``readings``.

    Rows that are ``left_out`` of a step do not count.
    """

    def __init__(self, log: InputLog, readings: ReplayableSources, left_out: LeftOutRows) -> None:
        self._log = log
        self._left_out = left_out
        self._readings = readings
        self._last = log.last

    def leaves_out(self, step: int) -> bool:
        """True if rows are left out of a step."""
        return step in self._left_out

    def keeps_time_open(self, step: int) -> bool:
        """True if event time does not end with a step, although the log has that."""
        return self._left_out.whole(step)

    def check_whose(self) -> None:
        """Raise LogTaken where another process has fixed steps: what was read here is not what counts for them."""
        if self._log.last > self._last:
            raise LogTaken(f"input log {self._log.name}")

    async def of(
        self, step: int, *, replayed: bool, ended: bool
    ) -> tuple[Mapping[str, Sequence[pa.RecordBatch]], Mapping[str, Mapping[str, SourceRows]]]:
        """Return the input of a step, as a circuit takes it: Z-sets for each input, and the sources' rows.

        The next step is fixed by it, with all that has come in.

        ``replayed``: with nothing, as others had that step already. ``ended``: event time ends with it. That it counts
        is durable, even if this process ends. Raises StorageError, InputError; LogTaken as `check_whose`.
        """
        self.check_whose()
        self._last = max(self._last, step + 1)  # also where it fails, and has happened
        if not replayed:
            self._readings.leave_replay()
        logged = await self._logged(step, replayed=replayed, ended=ended)
        inputs: dict[str, Sequence[pa.RecordBatch]] = {
            key: [rows] for key, rows in logged.items() if rows.num_rows
        }
        sources = await self._readings.rows(step)
        if step in self._left_out:
            inputs = {key: self._left_out.kept(step, key, rows) for key, rows in inputs.items()}
            sources = {key: self._kept(step, key, rows) for key, rows in sources.items()}
        return inputs, sources

    def _kept(self, step: int, input_: str, sources: Mapping[str, SourceRows]) -> Mapping[str, SourceRows]:
        return {
            source: SourceRows(self._left_out.kept(step, input_, each.rows), each.awaited)
            for source, each in sources.items()
        }

    async def _logged(self, step: int, *, replayed: bool, ended: bool) -> dict[str, pa.RecordBatch]:
        if step < self._log.last:
            return await self._log.fix(step)
        read = NOTHING
        if replayed:
            await self._log.pass_over(step)
        else:
            read = await self._readings.passages()
        return await (self._log.end(step, read) if ended else self._log.fix(step, read))
