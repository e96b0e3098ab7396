"""Parts of descriptions of endpoints, in OpenAPI 3.1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROBLEM = {
    "type": "object",
    "required": ["error", "what", "where", "do"],
    "properties": {
        "error": {"type": "string", "description": "A name for programs."},
        "what": {"type": "string", "description": "The error, in a sentence."},
        "where": {"type": "string", "description": "The request."},
        "do": {"type": "string", "description": "The remedy."},
        "expected": {"type": "integer", "description": "The next number of the producer."},
        "bound": {
            "type": "integer",
            "description": "The first step or time that is kept, or the next one that will exist.",
        },
    },
}
NUMBER = {"type": "integer", "minimum": 0, "maximum": 10**18 - 1}
BYTES = {"type": "string", "format": "binary"}
ANY = {"type": "object"}


def document(title: str, paths: Mapping[str, Any]) -> dict[str, Any]:
    """A description of these paths."""
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": "1"},
        "paths": dict(paths),
        "components": {
            "schemas": {"Problem": PROBLEM},
            "securitySchemes": {"secret": {"type": "http", "scheme": "bearer"}},
        },
    }


def object_of(**properties: dict[str, Any]) -> dict[str, Any]:
    """The schema of an object with all of these."""
    return {"type": "object", "required": list(properties), "properties": properties}


COLUMNS = {"type": "array", "items": object_of(name={"type": "string"}, type={"type": "string"})}


def one_of(names: Sequence[str]) -> dict[str, Any]:
    """The schema of one of these names."""
    return {"type": "string", "enum": list(names)}


def path(name: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A part of the path."""
    return {"name": name, "in": "path", "required": True, "schema": schema}


def query(name: str, schema: dict[str, Any], text: str, *, required: bool = False) -> dict[str, Any]:
    """A parameter."""
    return {"name": name, "in": "query", "required": required, "schema": schema, "description": text}


def call(
    text: str, schema: dict[str, Any], parameters: list[dict[str, Any]] | None = None, *, code: str = "200"
) -> dict[str, Any]:
    """An endpoint that answers with JSON."""
    return given(text, {"application/json": schema}, parameters, code=code)


def given(
    text: str,
    content: dict[str, dict[str, Any]],
    parameters: list[dict[str, Any]] | None = None,
    *,
    code: str = "200",
) -> dict[str, Any]:
    """An endpoint that answers with one of these types; each may answer with a problem."""
    problem = {"application/json": {"schema": {"$ref": "#/components/schemas/Problem"}}}
    return {
        "summary": text,
        "parameters": parameters or [],
        "responses": {
            code: {
                "description": text,
                "content": {kind: {"schema": schema} for kind, schema in content.items()},
            },
            "default": {"description": "The error.", "content": problem},
        },
    }
