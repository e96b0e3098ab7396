"""Errors, as the service answers them: an object with the error, the place, and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import JSONResponse

from nebuli.circuits import errors as circuit
from nebuli.ingestion import errors as ingestion
from nebuli.store import errors as storage
from nebuli.store.collections import errors as collections
from nebuli.views import errors as views

if TYPE_CHECKING:
    from collections.abc import Mapping

    from starlette.requests import Request

    Failure = circuit.CircuitError | storage.StorageError | ingestion.IngestionError | views.ViewError

FAILURES = (circuit.CircuitError, storage.StorageError, ingestion.IngestionError, views.ViewError)
"""Errors that `problem_of` takes."""


class Problem(Exception):
    """A request is not answered. ``more`` are additional members of the object."""

    def __init__(self, status: int, error: str, what: str, do: str, **more: Any) -> None:
        self.status = status
        self.error = error
        self.what = what
        self.do = do
        self.more = more
        super().__init__(what)

    def response(self, where: str, headers: Mapping[str, str] | None = None) -> JSONResponse:
        """Its answer."""
        content = {"error": self.error, "what": self.what, "where": where, "do": self.do, **self.more}
        return JSONResponse(content, self.status, headers)


_MEANING: dict[type[circuit.CircuitError], tuple[int, str, str]] = {
    circuit.UnknownInput: (
        404,
        "unknown_input",
        "GET /metadata lists the inputs, and which of them take rows",
    ),
    circuit.UnknownOutput: (404, "unknown_output", "GET /metadata lists the outputs"),
    circuit.WrongRows: (
        400,
        "wrong_rows",
        "GET /metadata lists the columns of an input, GET /collections/NAME those of a collection",
    ),
    circuit.SequenceGap: (
        409,
        "sequence_gap",
        "send the rows with the number 'expected', then the rows that follow",
    ),
    circuit.SequenceReused: (409, "sequence_reused", "send these rows with the number 'expected'"),
    circuit.InputFull: (
        429,
        "input_full",
        "POST /start, or /start_input_endpoint, if the circuit or the input is paused; send the push again",
    ),
    circuit.CircuitShutDown: (
        409,
        "shut_down",
        "run the query again with the same state, and send the push again",
    ),
    circuit.StepForgotten: (410, "step_forgotten", "ask from step 'bound' on"),
    circuit.StepNotThere: (409, "step_not_there", "ask again when step 'bound' has been made"),
    circuit.CheckpointNotMade: (
        409,
        "checkpoint_not_made",
        "GET /stats shows the state of the members; ask again",
    ),
    circuit.NotScaled: (409, "not_scaled", "GET /stats shows the state of the members"),
    circuit.WrongQuery: (400, "wrong_query", "fix the SQL; GET /metadata lists the tables"),
    circuit.ContentsUnknown: (409, "contents_unknown", "ask for another table, or read /output_endpoint"),
    circuit.QueryTooLarge: (
        413,
        "query_too_large",
        "select less: with a LIMIT, fewer columns, or an aggregate",
    ),
    circuit.QueryTimedOut: (504, "query_timed_out", "select less, or ask again when all members answer"),
}


_OF_STORES: dict[type[storage.StorageError], tuple[int, str, str]] = {
    collections.CollectionDropped: (
        410,
        "collection_dropped",
        "stop using it, or create a collection of this name again",
    ),
    collections.CollectionUnknown: (404, "unknown_collection", "GET /collections lists them"),
    collections.CollectionExists: (
        409,
        "collection_exists",
        "choose another name, or DELETE that collection first",
    ),
    collections.RowsMismatch: (400, "wrong_rows", "GET /collections/NAME lists its columns"),
    collections.CollectionMisused: (
        400,
        "collection_misused",
        "follow the advice in 'what'; nothing was changed",
    ),
    collections.RenditionUnknown: (
        404,
        "unknown_rendition",
        "GET /collections/NAME lists the renditions; POST /collections/NAME/renditions makes one",
    ),
    collections.RenditionRefused: (
        409,
        "rendition_refused",
        "follow the advice in 'what'; nothing was changed",
    ),
    collections.TooLate: (410, "too_late", "ask from time 'bound' on"),
    storage.NotYet: (409, "not_yet", "ask again, or ask for an earlier time"),
    storage.SchemaMismatch: (400, "wrong_columns", "use other columns"),
    storage.SequencePassed: (
        409,
        "sequence_passed",
        (
            "if the rows are those of that number, do nothing, because they were inserted; otherwise send "
            "the rows with the number 'expected'"
        ),
    ),
    storage.StoreClosed: (503, "ended", "ask again, starting after the last received time"),
    storage.StoreFull: (507, "store_full", "make room, and ask again; nothing is lost"),
    storage.Unclear: (
        503,
        "unclear",
        (
            "repeat the request if it has a producer and a sequence: it is applied once; otherwise first "
            "check whether it was applied"
        ),
    ),
    storage.Damaged: (500, "damaged", "follow the advice in 'what'"),
    storage.StorageError: (503, "store_failed", "follow the advice in 'what', and ask again"),
}

_OF_SOURCES: dict[type[ingestion.IngestionError], tuple[int, str, str]] = {
    ingestion.SourceUnknown: (404, "unknown_source", "GET /sources lists them"),
    ingestion.IngestionError: (503, "source_failed", "follow the advice in 'what', and ask again"),
}

_OF_VIEWS: dict[type[views.ViewError], tuple[int, str, str]] = {
    views.WrongKey: (400, "wrong_key", "GET /views lists the columns of a key and their types"),
    views.LookupTimedOut: (504, "lookup_timed_out", "ask again, or allow more time: ?deadline=SECONDS"),
    views.UnknownView: (
        503,
        "view_away",
        "ask again: the view's process is being started, or its query has ended",
    ),
    views.ViewUnreachable: (
        503,
        "view_away",
        "ask again: the view's process is being started, or does not answer",
    ),
    views.ViewsClosed: (503, "ended", "ask again when the query runs again"),
    views.ViewError: (503, "view_failed", "follow the advice in 'what', and ask again"),
}
"""The server of a view knows its name, so one that is not found is away."""


def problem_of(error: Failure) -> Problem:
    """Return the HTTP problem for an error of a circuit, a store, a source or a view."""
    if isinstance(error, storage.StorageError):
        status, name, do = next(_OF_STORES[each] for each in type(error).__mro__ if each in _OF_STORES)
    elif isinstance(error, ingestion.IngestionError):
        status, name, do = next(_OF_SOURCES[each] for each in type(error).__mro__ if each in _OF_SOURCES)
    elif isinstance(error, views.ViewError):
        status, name, do = next(_OF_VIEWS[each] for each in type(error).__mro__ if each in _OF_VIEWS)
    else:
        status, name, do = _MEANING.get(
            type(error), (503, "circuit_failed", "GET /stats shows the state of the members; ask again")
        )
    more = {key: getattr(error, key) for key in ("expected", "bound") if hasattr(error, key)}
    if isinstance(error, collections.TooLate):
        more["bound"] = error.since
    return Problem(status, name, str(error), do, **more)


def place(request: Request) -> str:
    """Where it went wrong."""
    return f"{request.method} {request.url.path}"
