"""The order for a member's process: all that it needs to know, in transferable form."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict

from nebuli.steps.member.inputs.step_inputs import LeftOut
from nebuli.steps.member.scaling.layout import Takeover
from nebuli.store.store_url import StorePlace
from placement.plan import Late
from placement.stepped_plan import Feed, SteppedPlan


class MemberOrder(BaseModel):
    """One process of a member.

    ``store`` is the place of its logs and versions, ``listen`` where its receiver listens. Paths of sources start at
    the process's working directory. ``external``: some inputs are pushed into, and do not end. ``late``: what is done
    about rows whose window is over. ``keep_output_bytes``: how much it keeps of the output that sinks have had;
    None: all. ``keep_contents_bytes``: see `nebuli.dataflow.SteppedCircuit`. ``left_out``: rows that do not count, the
    same at all members. ``awaits_growth``: event time waits for what a later run finds in sources that grow.
    ``takeover``: the members from which it takes its initial state, if it has none yet.
    """

    model_config = ConfigDict(frozen=True)

    circuit: str
    member: int
    plan: SteppedPlan
    feeds: tuple[Feed, ...]
    external: bool
    store: StorePlace
    listen: str
    secret: str | None
    max_state_bytes: int
    late: Late = Late.COUNT
    keep_output_bytes: int | None = None
    keep_contents_bytes: int | None = None
    left_out: tuple[LeftOut, ...] = ()
    awaits_growth: bool = False
    takeover: Takeover | None = None
