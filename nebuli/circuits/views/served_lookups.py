"""Views of a circuit that runs here, at one address for all readers."""

from __future__ import annotations

from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

import netchannel
from nebuli.circuits.views.view_lookups import ViewLookups
from nebuli.views.view_calls import ADDING, LISTING, added_bytes, listed_bytes, service_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.rpc.trust import Trust
    from nebuli.steps.coordinator.circuit_run import AnyRun

_NO_MORE = "the query runs in steps, so its views come from its file only: add the view there, and use another --state"


@asynccontextmanager
async def served_lookups(run: AnyRun, address: str, trust: Trust) -> AsyncIterator[str]:
    """Answer for a run's views as their nodes do if it runs free; yields the address.

    ``trust`` is required of readers. Raises OSError where the address cannot be bound.
    """
    async with netchannel.ReceiverServer(address, tls=trust.tls, secret=trust.secret) as receiver:
        lookups = ViewLookups(run, run.plan.name)

        async def listed(_: bytes) -> bytes:
            return listed_bytes(await lookups.measured())

        for name in lookups.names:
            receiver.register_service(service_of(name), partial(lookups.answer, name))
        receiver.register_service(LISTING, listed)
        receiver.register_service(ADDING, lambda _: added_bytes(why=_NO_MORE))
        try:
            yield receiver.address
        finally:
            await lookups.close()
