"""Reads query files, and reports all their mistakes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from placement.errors import InvalidQuery
from placement.graph import Outline, shape_mistakes
from placement.plan import Origin, Query, unknown_operators
from placement.reading.json_document import parse_json
from topology import Mistake, Topology
from topology.mistakes import in_file_order, read_text
from topology.validation import validation_mistakes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from os import PathLike


def load_query(path: str | PathLike[str]) -> Query:
    """Read a query file; the query is named after it. ``InvalidQuery`` holds every mistake with its place."""
    text = read_text(Path(path))
    if isinstance(text, Mistake):
        raise InvalidQuery([text])
    return parse_query(text, name=Path(path).stem, file=str(path))


def parse_query(text: str, name: str = "query", file: str | None = None) -> Query:
    """Read a query from JSON text; ``file`` is the name that mistakes carry."""
    data, marks, mistakes = parse_json(text, file)
    if data is None and mistakes:
        raise InvalidQuery(mistakes)
    outlines = list(_outlines(data))
    # A text without a single operator in it has no shape to judge.
    found = shape_mistakes(outlines) if outlines else ()
    mistakes += [marks.mistake(path, message) for path, message in found]
    unknown = unknown_operators(_with_policies(data), outlines)
    mistakes += [marks.mistake(path, message, at_key=True) for path, message in unknown]
    try:
        query = Query.model_validate(data, context=Origin(sanitized(name), marks))
    except ValidationError as error:
        mistakes += validation_mistakes(error, Query, marks, others={"a topology": Topology})
    except InvalidQuery:
        pass  # the same checks ran above, together with the others
    else:
        if not mistakes:
            return query
    raise InvalidQuery(in_file_order(mistakes))


def sanitized(name: str) -> str:
    """A name that is safe in the names of channels: other characters become dashes, 60 at most."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name)[:60] or "query"


def _with_policies(data: Any) -> list[str]:
    """The names of operators whose channels have policies."""
    channels = data.get("channels") if isinstance(data, dict) else None
    of = channels.get("of") if isinstance(channels, dict) else None
    return list(of) if isinstance(of, dict) else []


def _outlines(data: Any) -> Iterator[Outline]:
    """The outlines of what looks like operators."""
    operators = data.get("operators") if isinstance(data, dict) else None
    for index, item in enumerate(operators if isinstance(operators, list) else ()):
        if isinstance(item, dict) and isinstance(item.get("id"), str):
            path = ("operators", index)
            type_, name = str(item.get("type", "operator")), item.get("name")
            yield Outline(
                path,
                item["id"],
                type_,
                tuple(_inputs(path, item)),
                name if type_ == "view" and isinstance(name, str) else None,
            )


def _inputs(path: tuple[str | int, ...], item: dict[str, Any]) -> Iterator[tuple[tuple[str | int, ...], str]]:
    if isinstance(item.get("input"), str):
        yield (*path, "input"), item["input"]
    inputs = item.get("inputs")
    for index, child in enumerate(inputs if isinstance(inputs, list) else ()):
        if isinstance(child, str):
            yield (*path, "inputs", index), child
