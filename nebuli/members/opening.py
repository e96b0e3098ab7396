"""A member with its store open: its logs, its versions, and the servers that it was given."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from nebuli.dataflow import SteppedCircuit
from nebuli.members.inputs.readings import Readings
from nebuli.members.member import Member
from nebuli.members.saved_state import SavedState
from nebuli.storage import Store
from nebuli.storage.logs.input_log import InputLog
from nebuli.storage.logs.output_log import OutputLog

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from netchannel import ReceiverServer, SenderServer
    from placement.stepped import Feed, SteppedPlan

LOG = "member"
"""The name of a member's logs and versions in its own store."""


@contextlib.asynccontextmanager
async def opened_member(
    circuit: str,
    plan: SteppedPlan,
    number: int,
    folder: Path,
    feeds: Sequence[Feed] = (),
    *,
    sender: SenderServer,
    receiver: ReceiverServer,
    max_state_bytes: int,
    address: str | None = None,
    fails_late: bool = False,
    keep_output_bytes: int | None = None,
) -> AsyncIterator[Member]:
    """The member of this number, which reads ``feeds``. Raises StorageError.

    ``address`` is where others reach the receiver, if not where that says. ``fails_late``: it fails at the first row
    that is late. ``keep_output_bytes``: how much it keeps of the output that sinks have had; None: all.
    """
    async with contextlib.AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.at(folder))
        shapes = SteppedCircuit(plan, number)
        log = await InputLog.open(store, LOG, shapes.inputs)
        await stack.enter_async_context(log)
        readings = await stack.enter_async_context(Readings(feeds, log))
        own = {key: schema for key, schema in shapes.outputs.items() if plan.homes[key] == number}
        yield Member(
            circuit,
            plan,
            number,
            secrets.token_hex(8),
            sender=sender,
            receiver=receiver,
            log=log,
            outputs=await OutputLog.open(store, LOG, own) if own else None,
            state=SavedState(store.state_store(LOG)),
            readings=readings,
            max_state_bytes=max_state_bytes,
            address=address,
            fails_late=fails_late,
            keep_output_bytes=keep_output_bytes,
        )
