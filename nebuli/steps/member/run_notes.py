"""Notes of the processes of a fragment in steps about one run, for the next process.

A start of the fragment forgets it.

The worker forgets it before it records that the fragment runs. So after any later death, of the worker too, the next
process does not take notes of the previous run for its own.
"""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from nebuli.dataflow.zset import added
from nebuli.store.errors import NoteDamaged
from nebuli.store.notes import Notes, sealed, unsealed

from .inputs.step_inputs import LeftOut, LeftOutRows, put_into_file, rows_of_step

if TYPE_CHECKING:
    from nebuli.store.store_url import StorePlace
    from placement.stepped_plan import SteppedPlan

    from .member import Member


COORDINATOR = "coordinator.json"
"""The requests to a coordinator, and its progress."""
DISMISSED = "dismissed"
"""True if a member was dismissed: its coordinator may have ended since."""
PUBLISHED = "published"
"""Below which step the sinks of a member have had their results."""
TAKES = "takes-over"
"""True if a process of a member has begun to take state from others, which give it once.

The note counts for all runs.
"""


def forget_run(place: StorePlace) -> None:
    """Begin a run of the fragment that keeps what it has at ``place``. Raises OSError."""
    Notes(place).forget((COORDINATOR, DISMISSED, PUBLISHED))


_log = logging.getLogger("nebuli.steps.member")
_LEFT_OUT = "skipped.json"


class _Noted(NamedTuple):
    rule: LeftOut
    rows: int | None
    """How many rows they are; None before they are in a file."""
    file: str


class LeftOutNotes:
    """Notes of a member whose store is at ``place``; files of rows go there, or with a URL into the working directory.

    Methods raise NoteDamaged, and OSError as `Notes`.
    """

    def __init__(self, place: StorePlace) -> None:
        self._notes = Notes(place)
        self._folder = place if isinstance(place, Path) else Path.cwd()

    def ask(self, rules: str) -> None:
        """Have rows be left out from the next start on: rules as JSON, those that are known have no effect."""
        known = self._known()
        there = {(each.rule.step, each.rule.input) for each in known}
        new = [LeftOut(*each) for each in json.loads(rules)]
        self._write([*known, *(_Noted(each, None, "") for each in new if each[:2] not in there)])

    def rules(self) -> list[LeftOut]:
        """Which rows are left out."""
        return [each.rule for each in self._known()]

    async def put_aside(self, plan: SteppedPlan, member: Member) -> None:
        """Put the rows into files, those that are not yet, and log how many they are. Raises InputError, too."""
        noted = []
        for each in await asyncio.to_thread(self._known):
            noted.append(each if each.rows is not None else await self._put(each.rule, plan, member))
            if noted[-1].rows:
                _log.warning(
                    "step %d is computed without %d row(s) of input %s, as --skip-step asked: see %s",
                    *(each.rule.step, noted[-1].rows, each.rule.input, noted[-1].file),
                )
        if noted:
            await asyncio.to_thread(self._write, noted)

    async def _put(self, rule: LeftOut, plan: SteppedPlan, member: Member) -> _Noted:
        batches = (await rows_of_step(member.log, member.readings, rule.step)).get(rule.input, [])
        left_out = LeftOutRows(plan, [rule]).left_out(rule.step, rule.input, batches)
        if not any(each.num_rows for each in left_out):
            return _Noted(rule, 0, "")
        rows = added(left_out, left_out[0].schema)
        file = await asyncio.to_thread(put_into_file, self._folder, rule.step, rule.input, rows)
        return _Noted(rule, rows.num_rows, str(file))

    def _known(self) -> list[_Noted]:
        said = self._notes.read(_LEFT_OUT)
        if said is None:
            return []
        try:
            return [_Noted(LeftOut(*rule), rows, file) for rule, rows, file in unsealed(said)["rows"]]
        except (ValueError, KeyError, TypeError) as error:
            raise NoteDamaged(f"{self._notes.place}/{_LEFT_OUT}", error) from error

    def _write(self, noted: list[_Noted]) -> None:
        self._notes.write(_LEFT_OUT, sealed({"rows": noted}))
