"""Views as commands print them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nebuli.rpc.conventions import VIEWS_AT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nebuli.rpc.status import ViewStatus

HEADER = ("view", "key", "state", "keys", "bytes", "lookups", "hits", "upqueries", "evictions")
_COUNTS = HEADER[3:]


def how_to_read(name: str, key: Sequence[str], where: str) -> str:
    """Describe a view that a command serves at an address."""
    at = "" if where == VIEWS_AT else f" --at {where}"
    keys = " ".join(column.upper() for column in key)
    return f"view {name} at {where} until the query ends: nebuli view get {name} {keys}{at}"


def data_of(view: ViewStatus) -> dict[str, Any]:
    """Return a view's status for JSON."""
    state = "partial" if view.partial else "full"
    return {"view": view.name, "key": list(view.key), "state": state} | {
        name: getattr(view, name) for name in _COUNTS
    }


def cells_of(view: ViewStatus) -> tuple[str, ...]:
    """Return a view's row of a table under `HEADER`."""
    counts = (f"{getattr(view, name):,}" for name in _COUNTS)
    return (view.name, ", ".join(view.key), "partial" if view.partial else "full", *counts)
