"""The description of the endpoints of views, OpenAPI 3.1, with their names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nebuli.http.openapi_parts import COLUMNS, call, given, object_of, one_of, path, query
from nebuli.http.output_streams import EVENTS, LINES
from nebuli.http.views.view_routes import DEADLINE_S, MAX_DEADLINE_S, MAX_KEYS

if TYPE_CHECKING:
    from nebuli.http.views.view_places import ViewPlaces

_TEXT = {"type": "string"}
_COUNT = {"type": "integer", "minimum": 0}
_TEXTS = {"type": "array", "items": _TEXT}
_AWAY = object_of(name=_TEXT, away={"const": True}, why=_TEXT)
_THERE = object_of(
    name=_TEXT,
    away={"const": False},
    key=_TEXTS,
    columns=COLUMNS,
    state=one_of(["partial", "full"]),
    **dict.fromkeys(("keys", "bytes", "lookups", "hits", "upqueries", "evictions"), _COUNT),
)
_RESULT: dict[str, dict[str, Any]] = {
    "key": {"type": "array"},
    "hit": {"type": "boolean", "description": "The key was present before the request."},
    "rows": {"type": "array", "items": {"type": "object"}},
}
_VALUE = {"type": ["string", "number", "boolean", "null"]}
_KEYS = {
    "type": "object",
    "required": ["keys"],
    "properties": {
        "keys": {
            "type": "array",
            "maxItems": MAX_KEYS,
            "items": {"anyOf": [_VALUE, {"type": "array", "items": _VALUE}]},
            "description": "For each key, a list of the values of its columns, or the value itself if the "
            "key has one column.",
        }
    },
}


def view_paths(places: ViewPlaces) -> dict[str, Any]:
    """The paths."""
    name = path("name", one_of(places.names))
    key = query(
        "key",
        {**_TEXTS, "minItems": 1},
        "The value of a key column; repeat it for each key column, in the order of the key.",
        required=True,
    )
    deadline = query(
        "deadline",
        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_DEADLINE_S},
        f"Seconds to wait for missing keys [default: {DEADLINE_S:g}].",
    )
    return {
        "/views": {
            "get": call(
                "All views, with counts of their reads.",
                object_of(views={"type": "array", "items": {"anyOf": [_THERE, _AWAY]}}),
            )
        },
        "/views/{name}": {
            "get": call("The rows of one key.", object_of(view=_TEXT, **_RESULT), [name, key, deadline])
        },
        "/views/{name}/get": {
            "post": {
                **call(
                    "The rows of many keys, in their order.",
                    object_of(view=_TEXT, results={"type": "array", "items": object_of(**_RESULT)}),
                    [name, deadline],
                ),
                "requestBody": {"required": True, "content": {"application/json": {"schema": _KEYS}}},
            }
        },
        "/views/{name}/watch": {
            "get": given(
                "The rows of one key, now and after each change.",
                {LINES: _TEXT, EVENTS: _TEXT},
                [name, key, deadline],
            )
        },
        "/metrics": {
            "get": given("Counts of the reads of all views, for Prometheus.", {"text/plain": _TEXT})
        },
    }
