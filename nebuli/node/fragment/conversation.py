"""Messages between a worker and the processes of its fragments: pickled objects on a socket of their own."""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import netchannel
    from nebuli.node.data_port import Ports
    from nebuli.rpc.member_places import Succession
    from nebuli.rpc.status import FragmentStatus
    from nebuli.rpc.trust import Trust
    from nebuli.store.store_url import StorePlace

__all__ = [
    "Add",
    "AddEnd",
    "CheckpointEnd",
    "MakeCheckpoint",
    "Order",
    "Report",
    "Stop",
    "Succeed",
    "SuccessionEnd",
    "packed",
    "received",
]

_LENGTH = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Order:
    """The first message to a new process: what it is to run, and where."""

    id: str
    fragment: str
    """A ``placement.plan.Fragment``, or a ``placement.stepped_plan.StepFragment``, as JSON."""
    resumed: bool
    ports: Ports
    """The ports at which it takes data."""
    node: str
    """The address at which the worker takes members of its node."""
    max_state_bytes: int
    """Bound on the state of an operator whose plan has none."""
    memory_bytes: int | None
    """The most address space that the process may add to what it begins with."""
    trust: Trust
    """The credentials of its servers."""
    socket: Path
    """Where the coordinator of a query in steps serves what programs call."""
    http_socket: Path | None
    """Where it does so over HTTP, if it does."""
    locks: tuple[str, ...] = ()
    """The files of the locks whose descriptors it was given."""
    place: StorePlace | None = None
    """The place of the state of a fragment in steps."""


@dataclass(frozen=True, slots=True)
class Stop:
    """The fragment is to end, in order."""


@dataclass(frozen=True, slots=True)
class MakeCheckpoint:
    """A coordinator is to make a checkpoint; ``number`` comes back with what became of it."""

    number: int


@dataclass(frozen=True, slots=True)
class CheckpointEnd:
    """There is a checkpoint, and ``step`` is the next one, or none, and the reason."""

    number: int
    step: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Succeed:
    """A coordinator is to continue with other members; ``number`` returns with the outcome."""

    number: int
    succession: Succession


@dataclass(frozen=True, slots=True)
class SuccessionEnd:
    """They have taken over, and ``step`` is their first, or they have not, and why."""

    number: int
    step: int | None
    why: str = ""


@dataclass(frozen=True, slots=True)
class Add:
    """A part of a query with views is to have more operators; ``number`` comes back once it has."""

    number: int
    addition: str
    """A ``placement.plan.Addition``, as JSON."""


@dataclass(frozen=True, slots=True)
class AddEnd:
    """It has them, or has not, and why."""

    number: int
    why: str = ""


@dataclass(frozen=True, slots=True)
class Report:
    """How the fragment is. The last one of a process has its final state."""

    status: FragmentStatus
    sender: netchannel.SenderServerStatistics
    receiver: netchannel.ReceiverServerStatistics


def packed(message: object) -> bytes:
    """The message as it travels."""
    data = pickle.dumps(message)
    return _LENGTH.pack(len(data)) + data


async def received(reader: asyncio.StreamReader) -> Any:
    """The next message; None once the other side has gone."""
    try:
        (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
        return pickle.loads(await reader.readexactly(length))  # noqa: S301 - from our own child, or parent
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
