"""The description of the endpoints of collections, OpenAPI 3.1, with the names of the stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from nebuli.http.collections.collection_routes import MAX_LEASE_S
from nebuli.http.openapi_parts import BYTES, COLUMNS, NUMBER, call, given, object_of, one_of, path, query
from nebuli.http.output_streams import ARROW, EVENTS, LINES
from nebuli.store.collections.controller import MAX_SHARDS
from topology import DataType

if TYPE_CHECKING:
    from nebuli.http.collections.served_stores import ServedStores

_TEXT = {"type": "string"}
_WHOLE = {"type": "integer"}
_NAME = {"type": "string", "minLength": 1, "maxLength": 256}
_DURABLE = {
    "type": "boolean",
    "const": True,
    "description": "The request is recorded durably.",
}
_SHARDS = {"type": "integer", "minimum": 1, "maximum": MAX_SHARDS}
_NULLABLE = {"type": ["integer", "null"]}
_HOLDS = {
    "type": "array",
    "items": object_of(name=_TEXT, time=_WHOLE, expires={"type": ["number", "null"]}),
}
_RENDITION = object_of(
    name=_TEXT, shards=_WHOLE, since=_WHOLE, upper=_WHOLE, begin=_NULLABLE, end=_NULLABLE, bytes=_WHOLE
)
_COLLECTION = object_of(
    name=_TEXT,
    schema=COLUMNS,
    timed=one_of(["store", "writers"]),
    history_s={"type": "number"},
    created=_WHOLE,
    active=_TEXT,
    since=_WHOLE,
    upper=_WHOLE,
    renditions={"type": "array", "items": _RENDITION},
    holds=_HOLDS,
)
_NEW = {
    "type": "object",
    "required": ["name", "schema"],
    "additionalProperties": False,
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Za-z_][A-Za-z0-9_.-]{0,99}$"},
        "schema": {
            "type": "array",
            "minItems": 1,
            "items": object_of(name={"type": "string", "minLength": 1}, type=one_of([*map(str, DataType)])),
        },
        "shards": _SHARDS,
        "timed": one_of(["store", "writers"]),
        "keep": {"type": ["string", "number"]},
    },
}


def collection_paths(stores: ServedStores) -> dict[str, Any]:
    """The paths; none where there are no stores."""
    if not stores.names:
        return {}
    has_one = len(stores.names) == 1
    store = query("store", one_of(stores.names), "The store.", required=not has_one)
    own = [path("name", _NAME), store]
    rendition = query("rendition", _NAME, "Its name.", required=True)
    return {
        "/collections": {
            "get": call(
                "The collections of all stores, or of one.",
                object_of(
                    stores={"type": "array", "items": _TEXT},
                    collections={
                        "type": "array",
                        "items": object_of(store=_TEXT, name=_TEXT, active=_TEXT, since=_WHOLE, upper=_WHOLE),
                    },
                ),
                [{**store, "required": False}],
            ),
            "post": {
                **call(
                    "Create an empty collection.",
                    object_of(name=_TEXT, durable=_DURABLE),
                    [store],
                    code="201",
                ),
                "requestBody": {"required": True, "content": {"application/json": {"schema": _NEW}}},
            },
        },
        "/collections/{name}": {
            "get": call("A collection: its columns, renditions, frontiers and holds.", _COLLECTION, own),
            "delete": call(
                "Drop a collection; its readers then fail.",
                object_of(name=_TEXT, durable=_DURABLE),
                own,
            ),
        },
        "/collections/{name}/rows": {
            "get": given(
                "Rows at a time, changes after a time, or both.",
                {LINES: _TEXT, EVENTS: _TEXT, ARROW: BYTES},
                [
                    *own,
                    query("as_of", NUMBER, "The time of the rows, in milliseconds [default: the last]."),
                    query("from", NUMBER, "Only changes, from this time on."),
                    query("follow", {"type": "boolean"}, "Continue with later changes."),
                ],
            ),
            "post": {
                **call(
                    "Insert rows; the answer is their common time.",
                    object_of(time=_WHOLE, rows=_WHOLE, durable=_DURABLE),
                    [
                        *own,
                        query("producer", _NAME, "The unique name of the writer."),
                        query("sequence", NUMBER, "The producer's number for these rows; numbers ascend."),
                    ],
                ),
                "requestBody": {
                    "required": True,
                    "content": {LINES: {"schema": _TEXT}, ARROW: {"schema": BYTES}},
                },
            },
        },
        "/collections/{name}/sequence": {
            "get": call(
                "The number for the next insert of a producer.",
                object_of(sequence=_WHOLE),
                [*own, query("producer", _NAME, "The writer.", required=True)],
            )
        },
        "/collections/{name}/renditions": {
            "post": call(
                "Create an empty rendition, which programs write from scratch.",
                object_of(rendition=_TEXT, durable=_DURABLE),
                [
                    *own,
                    rendition,
                    query("shards", _SHARDS, "Parts that are written in parallel [default: 1]."),
                ],
                code="201",
            )
        },
        "/collections/{name}/renditions/{rendition}": {
            "delete": call(
                "Drop a rendition that is active at no readable time.",
                object_of(rendition=_TEXT, durable=_DURABLE),
                [*own, path("rendition", _NAME)],
            )
        },
        "/collections/{name}/handover": {
            "post": call(
                "Switch the collection to another rendition; the answer is the time of the switch.",
                object_of(time=_WHOLE, rendition=_TEXT, durable=_DURABLE),
                [
                    *own,
                    rendition,
                    query(
                        "built_from",
                        NUMBER,
                        "The rendition was built from the rows at this time; rows inserted since are added.",
                    ),
                    query(
                        "at",
                        NUMBER,
                        "The time from which the rendition is active, which may be in the future.",
                    ),
                ],
            )
        },
        "/collections/{name}/holds": {
            "get": call(
                "The holds on the collection's past, and the first time that can be read.",
                object_of(since=_WHOLE, holds=_HOLDS),
                own,
            ),
            "post": call(
                "Keep the collection readable from a time on, or move the hold to that time.",
                object_of(hold=_TEXT, durable=_DURABLE),
                [
                    *own,
                    query("hold", _NAME, "The name of the hold.", required=True),
                    query("at", NUMBER, "The time of the hold.", required=True),
                    query(
                        "lease_s",
                        {"type": "number", "exclusiveMinimum": 0, "maximum": MAX_LEASE_S},
                        "Seconds until it expires [default: never].",
                    ),
                ],
                code="201",
            ),
        },
        "/collections/{name}/holds/{hold}": {
            "delete": call(
                "Release a hold, if there is one.",
                object_of(hold=_TEXT, durable=_DURABLE),
                [*own, path("hold", _NAME)],
            )
        },
    }
