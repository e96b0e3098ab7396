"""JSON with the place of every key and value, and without keys that stand twice."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from topology import Marks, Mistake
from topology.mistakes import Location, Spot, Spots, spots_in

if TYPE_CHECKING:
    from collections.abc import Iterator

_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],:]|[^\s{}\[\],:"]+')

_TRAILING_COMMA = re.compile(r",\s*[\]}]")
_STATEMENT = re.compile(r"(?:\s|--.*|/\*(?s:.*?)\*/)*+(?:EXPLAIN|INSERT|SELECT|WITH)\s", re.IGNORECASE)


def is_statement(text: str) -> bool:
    """True if a text begins like a statement in SQL."""
    return _STATEMENT.match(text) is not None


def parse_json(text: str, file: str | None) -> tuple[Any, Marks, list[Mistake]]:
    """Return the data of a JSON text, the places of its parts, and its mistakes. The data is None if it is not JSON."""
    marks = Marks(file, lambda: _spots(text))
    repeated: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        data = dict(pairs)
        if len(data) < len(pairs):
            repeated.append("")
        return data

    try:
        data = json.loads(text, object_pairs_hook=unique, parse_int=_integer)
    except json.JSONDecodeError as error:
        message = f"not valid JSON: {error.msg}" if text.strip() else "the file is empty; expected a query"
        # Python 3.13 stops at the comma, earlier ones at the bracket.
        if _is_trailing_comma(text, error.pos):
            message += "; remove the comma before the closing bracket"
        elif is_statement(text):
            message += "; the name of a file with a statement in SQL ends in .sql"
        return None, marks, [Mistake(message, file, error.lineno, error.colno)]
    except RecursionError:
        return None, marks, [Mistake("lists and objects are nested too deeply", file)]
    return data, marks, list(_duplicates(text, file)) if repeated else []


def _is_trailing_comma(text: str, position: int) -> bool:
    comma = text.rfind(",", 0, position + 1)
    found = _TRAILING_COMMA.match(text, comma) if comma >= 0 else None
    return found is not None and position < found.end()


def _integer(digits: str) -> int | str:
    """No query holds a number; one that Python refuses to convert stays the text that was written."""
    try:
        return int(digits)
    except ValueError:
        return digits


def _duplicates(text: str, file: str | None) -> Iterator[Mistake]:
    seen: set[Location] = set()
    at = spots_in(text)
    for path, at_key, offset in _walk(text):
        if not at_key:
            continue
        if path in seen:
            spot = at(offset)
            yield Mistake(f"duplicate key {path[-1]!r}; give each key once", file, spot.line, spot.column)
        seen.add(path)


def _spots(text: str) -> Spots:
    keys: dict[Location, Spot] = {}
    values: dict[Location, Spot] = {}
    at = spots_in(text)
    for path, at_key, offset in _walk(text):
        (keys if at_key else values).setdefault(path, at(offset))
    return keys, values


def _walk(text: str) -> Iterator[tuple[Location, bool, int]]:
    """Every key and value of a valid JSON text: its path, whether it is the key, its offset."""
    path: list[str | int] = []  # of the next value; its last part is the index or key inside what is open
    expects_key = False
    for match in _TOKEN.finditer(text):
        match match[0]:
            case "{" | "[":
                yield tuple(path), False, match.start()
                path.append(0 if match[0] == "[" else "")
                expects_key = match[0] == "{"
            case "}" | "]":
                path.pop()
                expects_key = False
            case ",":
                last = path[-1]
                path[-1] = last + 1 if isinstance(last, int) else ""
                expects_key = not isinstance(last, int)
            case ":":
                expects_key = False
            case _:
                if expects_key:
                    path[-1] = json.loads(match[0])
                yield tuple(path), expects_key, match.start()
