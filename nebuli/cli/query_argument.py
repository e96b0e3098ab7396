"""The query of a command: the name of its file, or a statement on the command line."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath

if TYPE_CHECKING:
    from collections.abc import Callable


class InlineStatement(str):
    """A query that is given on the command line instead of in a file."""

    __slots__ = ()


inline_option = click.option(
    "-e",
    "--statement",
    metavar="STATEMENT",
    help="SQL statement of the query, instead of the file QUERY.",
)


def query_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the ``query`` of a command: the file QUERY, or the statement of ``-e``."""
    return _with_query(command, is_required=True)


def optional_query_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add an optional query, as `query_argument` does."""
    return _with_query(command, is_required=False)


def _with_query(command: Callable[..., Any], *, is_required: bool) -> Callable[..., Any]:
    @click.argument("query", required=False, type=FilePath())
    @inline_option
    @wraps(command)
    def given(query: str | None, statement: str | None, **options: Any) -> Any:
        found = one_query(query, statement)
        if found is None and is_required:
            raise click.UsageError("missing query: give the name of its file, or -e STATEMENT")
        return command(query=found, **options)

    return given


def one_query(query: str | None, statement: str | None) -> str | None:
    """Return the query that was given as a file or as a statement. Raises UsageError for both."""
    if query is not None and statement is not None:
        raise click.UsageError(f"{query} and -e STATEMENT are two queries: remove one of them")
    return query if statement is None else InlineStatement(statement)
