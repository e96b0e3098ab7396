"""The coordinator of a query in steps, as a fragment, with the service that programs call."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from nebuli.cancellation import cancelled
from nebuli.connectors.errors import ViewInUse
from nebuli.dataflow.progress import spelled
from nebuli.node.fragment.step_runner import WITHOUT_CHECKPOINT, StepRunner
from nebuli.node.placed.member_notes import MemberNotes
from nebuli.node.placed.member_workers import MemberWorkers
from nebuli.node.placed.placed_roster import PlacedRoster
from nebuli.rpc.ids import query_of
from nebuli.rpc.status import Cause, FragmentState, FragmentStatus
from nebuli.rpc.trust import NO_TRUST
from nebuli.steps.coordinator.circuit_run import CircuitRun
from nebuli.steps.coordinator.run_record import RunRecord
from nebuli.steps.errors import NotScaled
from nebuli.steps.protocol.errors import CheckpointNotMade
from nebuli.steps.protocol.events import StaysOpen
from nebuli.steps.protocol.triggers import SPACING_S, TriggerSettings
from nebuli.store import Store
from nebuli.views.view_calls import service_of
from netchannel import ChannelInUse

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from nebuli.circuits.views.view_lookups import ViewLookups
    from nebuli.rpc.member_places import Succession
    from nebuli.rpc.trust import Trust
    from nebuli.steps.protocol.events import Order
    from nebuli.store.store_url import StorePlace
    from netchannel import ReceiverServer, SenderServer, Service
    from placement.stepped_plan import CoordinatorPlacement

__all__ = ["CoordinatorRunner"]

_log = logging.getLogger("nebuli.steps.coordinator")
_LOOK_S = 0.2


class CoordinatorRunner(StepRunner):
    """The coordinator, to the end of all inputs, or until a program shuts it down.

    It serves what programs call at ``socket``, to its worker, and at ``http_socket`` over HTTP. It shows ``trust`` to
    other workers.
    """

    def __init__(
        self,
        id_: str,
        fragment: CoordinatorPlacement,
        place: StorePlace,
        sender: SenderServer,
        receiver: ReceiverServer,
        *,
        socket: Path,
        http_socket: Path | None = None,
        trust: Trust = NO_TRUST,
    ) -> None:
        super().__init__(id_, fragment, place, sender, receiver)
        self._order = fragment
        self._socket = socket
        self._http_socket = http_socket
        self._trust = trust
        self._notes: MemberNotes
        self.circuit: CircuitRun[Succession] | None = None
        """Once what it keeps has been read."""
        self._lookups: ViewLookups | None = None
        """Answers for its views, if it has some."""

    @property
    def status(self) -> FragmentStatus:
        """How it is now."""
        run = self.circuit
        if run is None or not run.has_begun or self._status.state.is_final:
            return self._status
        coordinator = run.coordinator
        phase = f"epoch {coordinator.epoch}, step {coordinator.next_step:,}, {coordinator.phase.value}"
        checkpoint = max((each.step for each in coordinator.checkpoints), default=run.record.known.over)
        circuit = self._notes.whose.circuit if self._notes.whose.places else ""
        views = () if self._lookups is None else self._lookups.statuses
        return replace(self._status, phase=phase, checkpoint=checkpoint, circuit=circuit, views=views)

    def stop(self) -> None:
        """Have it end, with a checkpoint if possible; harmless when it has."""
        super().stop()
        if self.circuit is not None:
            self.circuit.stop()

    async def checkpoint(self) -> int:
        """Have a checkpoint made; returns the next step. Raises CheckpointNotMade."""
        if self.circuit is None or not self.circuit.has_begun:
            raise CheckpointNotMade(None, "the coordinator is still starting")
        return await self.circuit.coordinator.checkpoint()

    async def succeed(self, succession: Succession) -> int:
        """Continue with other members, as `CircuitRun.succeed`."""
        if self.circuit is None:
            raise NotScaled(len(succession.members), "the coordinator is still starting")
        return await self.circuit.succeed(succession)

    async def _run(self) -> tuple[FragmentState, Cause, str]:
        from nebuli.circuits.served_run import (
            served_to_worker,  # not in processes that serve no one: it is large
        )

        order = self._order
        async with AsyncExitStack() as stack:
            epochs = await stack.enter_async_context(Store.at(self._place))
            settings = TriggerSettings(checkpoint_s=order.checkpoint_s, spacing_s=SPACING_S)
            run: CircuitRun[Succession]
            run = CircuitRun(
                RunRecord.at(self._place),
                settings,
                order.plan,
                order.external,
                _log_open,
                closes=order.closes,
            )
            self._notes = MemberNotes.at(self._place, order)
            workers = MemberWorkers(self._trust)
            query = query_of(self._status.id)
            roster = PlacedRoster(
                query,
                self._notes,
                workers,
                epochs=epochs,
                node=order.node,
                sender=self._sender,
                receiver=self._receiver,
            )
            stack.push_async_callback(run.close, "its coordinator has ended")
            await run.begin(roster)
            self.circuit = run
            if self._stopping.is_set():
                run.stop()
            await self._serve_views(run, stack)
            await stack.enter_async_context(served_to_worker(run, self._socket))
            if self._http_socket is not None:
                from nebuli.http.http_server import served_over_http_to_worker

                await stack.enter_async_context(served_over_http_to_worker(run, self._http_socket))
            if self._lookups is None:  # views are still read, even after an end
                run.ends_with_inputs.set()
            step = await run.run()
            if run.over is not None:
                return FragmentState.FINISHED, Cause.NONE, ""
            return FragmentState.STOPPED, Cause.REQUEST, "" if step is not None else WITHOUT_CHECKPOINT

    async def _serve_views(self, run: CircuitRun[Succession], stack: AsyncExitStack) -> None:
        """Answer for the query's views at the node, if it has some. Raises ViewInUse."""
        if not any(run.plan.views):
            return
        from nebuli.circuits.views.view_lookups import ViewLookups  # as above

        lookups = self._lookups = ViewLookups(run, self._status.id)
        stack.push_async_callback(lookups.close)
        services = {}
        for name in lookups.names:
            try:
                service = self._receiver.register_service(service_of(name), partial(lookups.answer, name))
            except ChannelInUse as error:
                raise ViewInUse(name, error) from error
            services[name] = await stack.enter_async_context(service)
        watching = asyncio.create_task(_watch_services(run, services))
        stack.push_async_callback(cancelled, [watching])


def _log_open(order: Order) -> None:
    """Log the windows that stay open at the end of the run."""
    if isinstance(order, StaysOpen):
        _log.info(
            "open windows wait for rows of a further run, or for --close: %s to %s at operator %s of member %d",
            spelled(order.begin_us),
            spelled(order.end_us),
            order.operator,
            order.member,
        )


async def _watch_services(run: CircuitRun[Succession], services: Mapping[str, Service]) -> None:
    """End the run if another process of the node turns out to have a view of the same name."""
    while True:
        for name, service in services.items():
            if service.error is not None:
                run.break_off(ViewInUse(name, service.error))
                return
        await asyncio.sleep(_LOOK_S)
