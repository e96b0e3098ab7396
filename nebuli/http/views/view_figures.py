"""What was read of views, and what they hold: as JSON, and for Prometheus."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nebuli.http.prometheus_text import family
from nebuli.http.views.view_places import ViewFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from nebuli.http.prometheus_text import Kind
    from nebuli.views import ViewError

    Found = Mapping[str, ViewFound | ViewError]

_COUNTED: dict[str, tuple[Kind, str]] = {
    "keys": ("gauge", "keys that a partial view has now"),
    "bytes": ("gauge", "memory of the keys that it has"),
    "lookups": ("counter", "keys that were looked up"),
    "hits": ("counter", "of these, keys that were there at once"),
    "upqueries": ("counter", "how often keys were asked for where the rows come from"),
    "evictions": ("counter", "keys that had to go"),
}
"""What is counted of a view, since its fragment's process began."""


def listed(found: Found) -> list[dict[str, Any]]:
    """All views; of one that is away its name, and why."""
    return [_listed(name, each) for name, each in found.items()]


def _listed(name: str, found: ViewFound | ViewError) -> dict[str, Any]:
    if not isinstance(found, ViewFound):
        return {"name": name, "away": True, "why": str(found)}
    view, status = found
    return {
        "name": name,
        "away": False,
        "key": view.key,
        "columns": [{"name": field.name, "type": str(field.type)} for field in view.schema],
        "state": "partial" if view.is_partial else "full",
        **{each: getattr(status, each) for each in _COUNTED},
    }


def view_metrics(found: Found) -> str:
    """The same for Prometheus. What is not known of a view that is away has no value."""
    return "".join(f"{line}\n" for line in _lines(found))


def _lines(found: Found) -> Iterator[str]:
    there = {name: each.status for name, each in found.items() if isinstance(each, ViewFound)}
    yield from family(
        "nebuli_view_up",
        "gauge",
        "whether a view answers",
        [({"view": name}, int(name in there)) for name in found],
    )
    for each, (kind, text) in _COUNTED.items():
        name = f"nebuli_view_{each}" + ("_total" if kind == "counter" else "")
        series = [({"view": view}, getattr(status, each)) for view, status in there.items()]
        yield from family(name, kind, text, series)
