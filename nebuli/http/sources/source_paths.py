"""The description of the endpoints of sources, OpenAPI 3.1, with the names of the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nebuli.http.openapi_parts import ANY, call, given, object_of, one_of, path, query
from nebuli.ingestion.entries import FROM_BAD_TO_GOOD

if TYPE_CHECKING:
    from nebuli.http.collections.served_stores import ServedStores

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_TEXT_OR_NULL = {"type": ["string", "null"]}
_WHOLE_OR_NULL = {"type": ["integer", "null"]}
_WHOLES = {"type": "object", "additionalProperties": _WHOLE}
_RAW = object_of(
    reads=_TEXT,
    unit=_TEXT,
    addresses=_WHOLES,
    ends={"type": ["object", "null"], "additionalProperties": _WHOLE},
    lag=_WHOLE_OR_NULL,
    error=_TEXT_OR_NULL,
)
_INSTANCE = object_of(
    instance=_TEXT,
    host=_TEXT,
    pid=_WHOLE,
    health=_TEXT,
    at=_WHOLE,
    upper=_WHOLE,
    error=_TEXT_OR_NULL,
    last_error=_TEXT_OR_NULL,
    last_error_at=_WHOLE_OR_NULL,
)
_SUPERVISOR = object_of(host=_TEXT, pid=_WHOLE, since=_WHOLE, at=_WHOLE)
_HOLD = object_of(collection=_TEXT, name=_TEXT, time=_WHOLE, expires={"type": ["number", "null"]})
_IN_SHORT: dict[str, dict[str, Any]] = {
    "name": _TEXT,
    "version": _WHOLE,
    "active": _TEXT,
    "phase": one_of(["creating", "there", "dropping"]),
    "replicas": _WHOLE,
    "remap_upper": _WHOLE,
    "upper": _WHOLE,
    "lag_ms": _WHOLE_OR_NULL,
    "health": {"enum": [*FROM_BAD_TO_GOOD, None]},
    "error": _TEXT_OR_NULL,
    "last_error": _TEXT_OR_NULL,
    "last_error_at": _WHOLE_OR_NULL,
    "undecoded": _WHOLE_OR_NULL,
}
_SOURCE = object_of(
    **_IN_SHORT,
    rendition=_TEXT,
    definition=ANY,
    raw_sources={"type": "object", "additionalProperties": _RAW},
    instances={"type": "array", "items": _INSTANCE},
    supervisors={"type": "array", "items": _SUPERVISOR},
    holds={"type": "array", "items": _HOLD},
)


def source_paths(stores: ServedStores) -> dict[str, Any]:
    """The paths."""
    store = query("store", one_of(stores.names), "The store.", required=len(stores.names) != 1)
    name = path("name", {"type": "string", "minLength": 1, "maxLength": 256})
    sources = {"type": "array", "items": object_of(store=_TEXT, **_IN_SHORT)}
    return {
        "/sources": {
            "get": call(
                "The sources of all stores, or of one store, with their progress.",
                object_of(stores={"type": "array", "items": _TEXT}, sources=sources),
                [{**store, "required": False}],
            )
        },
        "/sources/{name}": {
            "get": call(
                "One source: the available amount, the recorded amount, instances, errors, and holds.",
                _SOURCE,
                [name, store],
            )
        },
        "/metrics": {"get": given("Figures of all sources, for Prometheus.", {"text/plain": _TEXT})},
    }
