"""`CircuitStatus`: a circuit at one moment."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Self

    from nebuli.rpc import circuit_pb2 as wire


@dataclass(frozen=True, slots=True)
class CircuitStatus:
    """How far it is. ``phase`` is the coordinator's: steps are made while it is ``running``, and not ``paused``.

    ``next_step`` is issued next; all below ``complete`` are made, and what came of them is durable. A coordinator that
    has only begun does not know of all that were made before: it has ``caught_up`` once it does, and ``complete`` does
    not go back from then on. ``epoch`` rises whenever the circuit goes on from a checkpoint because something was lost.
    ``checkpoints`` are the steps that all members can go on from. ``members`` are their process ids; None of one that
    is being started.
    """

    phase: str
    epoch: int
    next_step: int
    complete: int
    caught_up: bool
    paused: bool
    checkpoints: tuple[int, ...]
    members: tuple[int | None, ...]

    @classmethod
    def of(cls, reply: wire.StatusReply) -> Self:
        """What a circuit says of itself."""
        return cls(
            phase=reply.phase,
            epoch=reply.epoch,
            next_step=reply.next_step,
            complete=reply.complete,
            caught_up=not reply.catching_up,
            paused=reply.paused,
            checkpoints=tuple(each.step for each in reply.checkpoints),
            members=tuple(each.pid or None for each in reply.members),
        )
