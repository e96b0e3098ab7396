"""`MadeSteps`: how many steps all members have made, which only rises, also while they make some of them again.

A step is issued once all have made the one before it, in this epoch or in one before, and what came of it is durable
then. So of the steps that members have in their logs only the last one may not have been made by all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from nebuli.steps.protocol.messages import Checkpoint, Joined


@dataclass(slots=True)
class MadeSteps:
    """Those of a coordinator and of all before it: all members have made all steps below ``complete``."""

    complete: int = 0
    _before: int | None = None

    @property
    def known(self) -> bool:
        """True if `complete` is as high as it was for any coordinator before this one."""
        return self._before is not None and self.complete >= self._before

    def found(self, joined: Mapping[int, Joined], common: Checkpoint) -> None:
        """All members have reported their versions, of which they continue from ``common``."""
        logged = max(said.last for said in joined.values())
        if self._before is None:
            self._before = logged
        self.reached(max(common.step, logged - 1))

    def reached(self, step: int) -> None:
        """All have made all steps below this one."""
        self.complete = max(self.complete, step)
