"""Questions to a member about the keys of a view, and its answers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LookUp:
    """Asks for the rows of keys of a view, before the first available step from this one on.

    Keys are the IPC message of a batch of the key's columns, each of them once. With a ``name`` the view is held under
    it before each step from there on, for ``within_s`` at most; without one nothing is held, and so long is waited.
    """

    view: str
    keys: bytes
    name: str
    step: int
    within_s: float


@dataclass(frozen=True, slots=True)
class LookUpPinned:
    """As `LookUp`, before just this step, of a view that is held."""

    view: str
    keys: bytes
    name: str
    step: int


@dataclass(frozen=True, slots=True)
class LookedUp:
    """The rows of the keys before this step of an epoch, in their order: how many rows each, and the rows.

    ``counts`` are int32, little-endian. ``rows`` is the IPC message of a Z-set in the view's schema.
    """

    epoch: int
    step: int
    counts: bytes
    rows: bytes


@dataclass(frozen=True, slots=True)
class TooMuch:
    """The keys have so many bytes of rows, and so many at most are answered at once."""

    size: int
    most: int
