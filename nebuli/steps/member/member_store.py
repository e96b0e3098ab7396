"""A member with its store open: its logs, its versions, and the servers that it was given."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from nebuli.dataflow import SteppedCircuit
from nebuli.steps.logs.input_log import InputLog
from nebuli.steps.logs.output_log import Dating, OutputLog
from nebuli.steps.member.inputs.step_inputs import ReplayableSources
from nebuli.steps.member.member import Member
from nebuli.steps.member.saved_state import SavedState
from nebuli.store import Store
from placement.stepped_plan import TIME

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Mapping, Sequence

    import pyarrow as pa

    from nebuli.steps.member.inputs.step_inputs import LeftOut
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverServer, SenderServer
    from placement.stepped_plan import Feed, SteppedPlan

LOG = "member"
"""The name of a member's logs and versions in its own store."""


async def own_output_log(
    store: Store, plan: SteppedPlan, member: int, schemas: Mapping[str, pa.Schema]
) -> OutputLog | None:
    """The log of the outputs whose rows a member has, of all these; None if it has none. Raises StorageError."""
    own = {key: schema for key, schema in schemas.items() if plan.homes[key] == member}
    if not own:
        return None
    dated = tuple(key for key in plan.dated_outputs if key in own)
    final = {each.id for each in plan.outputs if each.target.mode == "final"}
    return await OutputLog.open(
        store,
        LOG,
        own,
        dating=Dating(TIME, dated) if dated else None,
        show_open=sorted(final & own.keys()) if plan.closings else (),
    )


@contextlib.asynccontextmanager
async def opened_member(
    circuit: str,
    plan: SteppedPlan,
    number: int,
    place: StorePlace,
    feeds: Sequence[Feed] = (),
    *,
    sender: SenderServer,
    receiver: ReceiverServer,
    max_state_bytes: int,
    address: str | None = None,
    fails_late: bool = False,
    keep_output_bytes: int | None = None,
    keep_contents_bytes: int | None = None,
    left_out: Iterable[LeftOut] = (),
    awaits_growth: bool = False,
) -> AsyncIterator[Member]:
    """The member of this number, which reads ``feeds``. Raises StorageError.

    ``address`` is where others reach the receiver, if not at its own. ``fails_late``: it fails at the first row
    that is late. ``keep_output_bytes``: how much it keeps of the output that sinks have had; None: all.
    ``keep_contents_bytes``: see `nebuli.dataflow.SteppedCircuit`. ``left_out``: rows that do not count.
    ``awaits_growth``: event time waits for what a later run finds in sources that grow.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.at(place))
        shapes = SteppedCircuit(plan, number)
        log = await InputLog.open(store, LOG, shapes.inputs)
        await stack.enter_async_context(log)
        readings = ReplayableSources(
            feeds,
            log,
            shapes.idle_after_s,
            untimed=shapes.untimed,
            gives_times=plan.homes.get(TIME) == number,
            awaits_growth=awaits_growth,
        )
        await stack.enter_async_context(readings)
        yield Member(
            circuit,
            plan,
            number,
            secrets.token_hex(8),
            sender=sender,
            receiver=receiver,
            log=log,
            outputs=await own_output_log(store, plan, number, shapes.outputs),
            state=SavedState(store.state_store(LOG)),
            readings=readings,
            max_state_bytes=max_state_bytes,
            address=address,
            fails_late=fails_late,
            keep_output_bytes=keep_output_bytes,
            keep_contents_bytes=keep_contents_bytes,
            left_out=left_out,
        )
