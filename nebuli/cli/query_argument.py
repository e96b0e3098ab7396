"""A query that a command is given: the name of its file, or a statement in the command itself."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.bounds import FilePath

if TYPE_CHECKING:
    from collections.abc import Callable


class InlineStatement(str):
    """A query that is given in the command itself, in place of its file."""

    __slots__ = ()


inline_option = click.option(
    "-e",
    "--statement",
    metavar="STATEMENT",
    help="The query itself, a statement of SQL, in place of its file.",
)


def query_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its ``query``: that of QUERY, or the statement of ``-e``."""
    return _with_query(command, is_required=True)


def optional_query_argument(command: Callable[..., Any]) -> Callable[..., Any]:
    """The same where it may be without one."""
    return _with_query(command, is_required=False)


def _with_query(command: Callable[..., Any], *, is_required: bool) -> Callable[..., Any]:
    @click.argument("query", required=False, type=FilePath())
    @inline_option
    @wraps(command)
    def given(query: str | None, statement: str | None, **options: Any) -> Any:
        found = one_query(query, statement)
        if found is None and is_required:
            raise click.UsageError("expected a query: the name of its file, or -e STATEMENT")
        return command(query=found, **options)

    return given


def one_query(query: str | None, statement: str | None) -> str | None:
    """The one of both that is given. Raises UsageError where both are."""
    if query is not None and statement is not None:
        raise click.UsageError(f"{query} and -e STATEMENT are two queries: leave one of them out")
    return query if statement is None else InlineStatement(statement)
