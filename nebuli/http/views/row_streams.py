"""The rows of a key that is watched, as they change: JSON lines, or events for a browser."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.http.json_rows import as_json, records
from nebuli.http.output_streams import EVENTS, Events, Lines
from nebuli.views.row_order import in_order

if TYPE_CHECKING:
    from starlette.requests import Request

    from nebuli.http.output_streams import Form, Part


def form_of(request: Request) -> Form:
    """The form that a request accepts."""
    return _RowEvents("rows") if EVENTS in request.headers.get("accept", "") else _RowLines("rows")


def _object(part: Part) -> bytes:
    return as_json({"rows": records([*map(in_order, part.batches)])})


class _RowLines(Lines):
    """All rows of the key, on a line, whenever they are others."""

    def part(self, part: Part) -> bytes:
        """Its line."""
        return _object(part) + b"\n"


class _RowEvents(Events):
    """The same as server-sent events, without ids: who connects again begins with the rows as they are then."""

    def part(self, part: Part) -> bytes:
        """Its event."""
        return b"event: rows\ndata: %s\n\n" % _object(part)

    def alive(self) -> bytes:
        """A comment."""
        return b": no other rows\n\n"
