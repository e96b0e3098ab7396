"""What a member's process is to be: all that it needs to know, as it is given to it."""

from __future__ import annotations

from pathlib import Path

from pydantic import BaseModel, ConfigDict

from placement.plan import Late
from placement.stepped import Feed, SteppedPlan


class MemberOrder(BaseModel):
    """One process of a member.

    ``store`` is the folder of its logs and versions, ``listen`` where its receiver listens. Paths of sources start at
    the process's working directory. ``external``: some inputs are pushed into, and do not end. ``late``: what is done
    about rows whose window is over. ``keep_output_bytes``: how much it keeps of the output that sinks have had;
    None: all.
    """

    model_config = ConfigDict(frozen=True)

    circuit: str
    member: int
    plan: SteppedPlan
    feeds: tuple[Feed, ...]
    external: bool
    store: Path
    listen: str
    secret: str | None
    max_state_bytes: int
    late: Late = Late.COUNT
    keep_output_bytes: int | None = None
