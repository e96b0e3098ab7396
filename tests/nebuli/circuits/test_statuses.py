"""What a circuit says of itself, as a program hears it."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from nebuli.circuits import CircuitStatus
from nebuli.circuits.circuit_service import CircuitService
from nebuli.rpc import circuit_pb2 as wire
from nebuli.steps.protocol.lockstep import Phase
from nebuli.steps.protocol.messages import Checkpoint


def calls(**more: Any) -> Any:
    """Of a circuit with two members, one of which is being started."""
    coordinator = SimpleNamespace(
        phase=Phase.RUNNING, epoch=3, next_step=105, paused=True, checkpoints=(Checkpoint(4, 100),), **more
    )
    plan = SimpleNamespace(members=2)
    run = SimpleNamespace(coordinator=coordinator, plan=plan, process={0: 17}.get)
    return SimpleNamespace(run=run, answering=nullcontext)


@pytest.mark.parametrize("known", [True, False])
async def test_a_status_says_how_many_steps_are_made_and_whether_all_of_them_are_known(known: bool) -> None:
    service = CircuitService(calls(complete=119, complete_is_known=known))
    reply = await service.Status(wire.StatusRequest(), None)  # type: ignore[arg-type]  # nothing is refused
    expected = CircuitStatus("running", 3, 105, 119, known, True, (100,), (17, None))
    assert CircuitStatus.of(wire.StatusReply.FromString(reply.SerializeToString())) == expected


def test_a_circuit_of_an_older_version_is_taken_at_its_word() -> None:
    assert CircuitStatus.of(wire.StatusReply(complete=7)).caught_up
