"""The externally visible state of a fragment."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - read by pydantic
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Self

from nebuli.rpc import worker_pb2 as wire

__all__ = ["Cause", "FragmentState", "FragmentStatus", "ViewStatus"]


class FragmentState(StrEnum):
    """The state of a fragment's life; the last three are for good."""

    REGISTERED = "registered"
    RUNNING = "running"
    FINISHED = "finished"
    FAILED = "failed"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        """True if nothing more will happen."""
        return self in (FragmentState.FINISHED, FragmentState.FAILED, FragmentState.STOPPED)


class Cause(StrEnum):
    """Why a fragment ended before its input did: the place to look at."""

    NONE = "none"
    ITSELF = "itself"
    INPUT = "input"
    UPSTREAM = "upstream"
    DOWNSTREAM = "downstream"
    REQUEST = "request"
    LOST = "lost"


@dataclass(frozen=True, slots=True)
class ViewStatus:
    """A view, by the name that it is read by, and what was read of it since its fragment's process began.

    ``keys`` are those that it has now, if it is ``partial``, and ``bytes`` what it holds of them, in memory;
    ``lookups`` are keys that were looked up, and ``hits`` those of them that were there at once; each of ``upqueries``
    was for some keys, and ``evictions`` are keys that were evicted.
    """

    name: str
    key: tuple[str, ...]
    partial: bool
    keys: int = 0
    bytes: int = 0
    lookups: int = 0
    hits: int = 0
    upqueries: int = 0
    evictions: int = 0

    @property
    def message(self) -> wire.ViewStatus:
        """The status as it travels."""
        return wire.ViewStatus(**{each.name: getattr(self, each.name) for each in fields(self)})

    @classmethod
    def of(cls, message: wire.ViewStatus) -> Self:
        """The status that came."""
        values = {each.name: getattr(message, each.name) for each in fields(cls)}
        return cls(**values | {"key": tuple(message.key)})


@dataclass(slots=True)
class FragmentStatus:
    """A fragment at one moment. Rows in are rows of Z-sets, rows out what its sink has sent or written.

    Bytes are those of the Z-sets in and out, in memory. ``late`` are the rows that came when their window was over, and
    were dropped, by the operator that did; ``without_time`` are those that a window dropped as their time was null, by
    the window; ``state_bytes`` is what its operators keep now; ``watermark`` is how far
    event time has come in it, in microseconds since 1970, if it has come anywhere. ``phase`` is what it is at where
    that takes long: of Spark. ``checkpoint`` is, for the coordinator of a query in steps, the step after the last one
    that all members have, if that is known: 0 where they have none but the beginning. ``circuit`` is, of the same, that
    of the members that it has, where it has had others before. ``views`` are those that can be read there.
    """

    id: str
    """The id that it has at its worker."""
    fragment: str
    state: FragmentState
    cause: Cause = Cause.NONE
    error: str = ""
    rows_in: int = 0
    rows_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    pid: int = 0
    """The id of its process, while it has one."""
    late: Mapping[str, int] = field(default_factory=dict)
    state_bytes: int = 0
    watermark: int | None = None
    phase: str = ""
    checkpoint: int | None = None
    circuit: str = ""
    views: tuple[ViewStatus, ...] = ()
    without_time: Mapping[str, int] = field(default_factory=dict)

    @property
    def late_rows(self) -> int:
        """Rows that came too late for any of the operators."""
        return sum(self.late.values())

    @property
    def rows_without_time(self) -> int:
        """Rows whose time was null at any of the windows."""
        return sum(self.without_time.values())

    @property
    def message(self) -> wire.FragmentStatus:
        """The status as it travels."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        named = {"state": f"STATE_{self.state.name}", "cause": f"CAUSE_{self.cause.name}"}
        views = [each.message for each in self.views]
        return wire.FragmentStatus(**values | named | {"views": views})

    @classmethod
    def of(cls, message: wire.FragmentStatus) -> Self:
        """The status that came."""
        values = {each.name: getattr(message, each.name) for each in fields(cls)}
        values["state"] = FragmentState[wire.State.Name(message.state).removeprefix("STATE_")]
        values["cause"] = Cause[wire.Cause.Name(message.cause).removeprefix("CAUSE_")]
        values |= {"late": dict(message.late), "without_time": dict(message.without_time)}
        values["views"] = tuple(map(ViewStatus.of, message.views))
        for name in ("watermark", "checkpoint"):
            values[name] = getattr(message, name) if message.HasField(name) else None
        return cls(**values)
