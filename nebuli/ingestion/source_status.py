"""The state of a source, for its users."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .entries import Health, InstanceStatus, SupervisorStatus


@dataclass(frozen=True, slots=True)
class RawSourceStatus:
    """A raw source: the ``addresses`` of the remap, and the ends of its present messages.

    None: it does not report them, and the reason.

    The ``lag`` is what lies between them, in ``unit``.
    """

    reads: str
    unit: str
    addresses: Mapping[str, int]
    ends: Mapping[str, int] | None
    lag: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class HeldBack:
    """A holder for which a collection keeps changes after a time; ``expires`` is in seconds since 1970."""

    collection: str
    name: str
    time: int
    expires: float | None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A source as it is now; times are in milliseconds since 1970.

    It is complete below ``upper``, which is ``lag_ms`` ago; its remap is, below ``remap_upper``. ``health`` and
    ``error`` are those of the instance that fares worst of those that run; None: none runs, or none is hindered. The
    ``last_error`` of any instance stays when it is over; it was met last at ``last_error_at``. ``undecoded`` is how
    many messages are in the collection of errors; None if there is none.
    """

    name: str
    version: int
    rendition: str
    active: str
    phase: str
    replicas: int
    definition: Mapping[str, Any]
    raw_sources: Mapping[str, RawSourceStatus]
    remap_upper: int
    upper: int
    lag_ms: int | None
    health: Health | None
    error: str | None
    instances: Sequence[InstanceStatus]
    supervisors: Sequence[SupervisorStatus]
    last_error: str | None
    last_error_at: int | None
    undecoded: int | None
    holds: Sequence[HeldBack]

    def to_data(self) -> dict[str, Any]:
        """The same as JSON shows it."""
        return asdict(self)
