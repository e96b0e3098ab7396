"""Messages between a fragment of a query in steps and its worker, while it runs in its process."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

import netchannel
from nebuli.node.data_port import member
from nebuli.node.fragment.conversation import (
    CheckpointEnd,
    MakeCheckpoint,
    Report,
    Stop,
    Succeed,
    SuccessionEnd,
    packed,
    received,
)
from nebuli.node.fragment.coordinator_runner import CoordinatorRunner
from nebuli.node.fragment.member_runner import MemberRunner
from nebuli.steps.errors import NotScaled
from nebuli.steps.protocol.errors import CheckpointNotMade
from placement.stepped_plan import CoordinatorPlacement

if TYPE_CHECKING:
    from nebuli.node.fragment.conversation import Order
    from nebuli.node.fragment.step_runner import StepRunner
    from nebuli.rpc.member_places import Succession
    from nebuli.store.store_url import StorePlace
    from placement.stepped_plan import StepFragment

_REPORT_S = 0.1


async def run_in_steps(
    order: Order, fragment: StepFragment, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Run the fragment to its end, follow the worker's requests meanwhile, and report the fragment's state."""
    assert order.place is not None, "a worker without a state takes no such fragment"
    async with (
        member(order.ports, order.node, order.trust) as receiver,
        netchannel.SenderServer(tls=order.trust.tls, secret=order.trust.secret) as sender,
    ):
        runner = _runner(order, fragment, order.place, sender, receiver)
        running = asyncio.create_task(runner.run())
        obeying = asyncio.create_task(_obey(reader, writer, runner))

        def report() -> None:
            status = replace(runner.status, pid=os.getpid())
            writer.write(packed(Report(status, sender.statistics(), receiver.statistics())))

        while not running.done():
            report()
            await asyncio.wait([running], timeout=_REPORT_S)
        running.result()
        report()
        await writer.drain()
    obeying.cancel()
    with suppress(asyncio.CancelledError):
        await obeying
    writer.close()
    await writer.wait_closed()


def _runner(
    order: Order,
    fragment: StepFragment,
    place: StorePlace,
    sender: netchannel.SenderServer,
    receiver: netchannel.ReceiverServer,
) -> StepRunner:
    if isinstance(fragment, CoordinatorPlacement):
        return CoordinatorRunner(
            order.id,
            fragment,
            place,
            sender,
            receiver,
            socket=order.socket,
            http_socket=order.http_socket,
            trust=order.trust,
        )
    return MemberRunner(
        order.id,
        fragment,
        place,
        sender,
        receiver,
        max_state_bytes=order.max_state_bytes,
    )


async def _obey(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, runner: StepRunner) -> None:
    async with asyncio.TaskGroup() as group:
        while (message := await received(reader)) is not None:
            match message:
                case Stop():
                    runner.stop()
                case MakeCheckpoint(number):
                    group.create_task(_make_checkpoint(number, runner, writer))
                case Succeed(number, succession):
                    group.create_task(_succeed(number, succession, runner, writer))
        os._exit(1)  # the worker is gone, and a successor may be there soon


async def _make_checkpoint(number: int, runner: StepRunner, writer: asyncio.StreamWriter) -> None:
    try:
        made = CheckpointEnd(number, await runner.checkpoint())
    except CheckpointNotMade as error:
        made = CheckpointEnd(number, error.step, error.why)
    writer.write(packed(made))


async def _succeed(
    number: int, succession: Succession, runner: StepRunner, writer: asyncio.StreamWriter
) -> None:
    try:
        made = SuccessionEnd(number, await runner.succeed(succession))
    except NotScaled as error:
        made = SuccessionEnd(number, None, str(error))
    writer.write(packed(made))
