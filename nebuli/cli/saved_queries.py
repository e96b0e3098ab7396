"""Queries that were registered from this account, in files below the XDG state directory."""

from __future__ import annotations

import fcntl
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click
from pydantic import ValidationError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from nebuli.control.deployed_queries import DeployedQuery

_SHOWN = 60
"""The number of characters of an unknown id that an error shows."""


def state_directory() -> Path:
    """Return the directory of this account's durable state."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "nebuli"


def directory() -> Path:
    """Return the directory of saved queries."""
    return state_directory() / "queries"


def save(query: DeployedQuery) -> None:
    """Save a query atomically. Raises ClickException if its directory cannot be written."""
    from nebuli.durable_files import make_directory, write_durably

    folder = directory()
    try:
        make_directory(folder)
        write_durably(folder / f"{query.id}.json", query.model_dump_json(indent=2, by_alias=True))
    except OSError as error:
        raise click.ClickException(
            f"cannot save query {query.id} in {folder}: {error.strerror or error}; free some space, or set "
            f"XDG_STATE_HOME to a writable directory"
        ) from error


def load(id_: str) -> DeployedQuery:
    """Load the query with this id, or the only one whose id starts with it. Raises ClickException."""
    if not id_:  # every id starts with it, and an unset variable must not stand for the only query
        raise click.ClickException("expected a query's id, got an empty string; 'nebuli list' lists the ids")
    known = sorted(path.stem for path in directory().glob("*.json"))
    if not known:
        raise click.ClickException(
            f"unknown query {id_[:_SHOWN]!r}: no query is registered (in {directory()}); register and start one with "
            f"'nebuli start TOPOLOGY QUERY'"
        )
    found = [each for each in known if each == id_] or [each for each in known if each.startswith(id_)]
    if len(found) != 1:
        from topology.consistency import did_you_mean

        if found:
            problem = f"the id {id_[:_SHOWN]!r} is ambiguous: it matches {', '.join(found)}"
        else:
            meant = did_you_mean(id_, known)
            problem = f"unknown query {id_[:_SHOWN]!r}{meant}: the registered queries are {', '.join(known)}"
        raise click.ClickException(f"{problem} (in {directory()}); 'nebuli list' shows them")
    return _read(directory() / f"{found[0]}.json")


def again(query: DeployedQuery) -> DeployedQuery:
    """Load the query's current version; return it unchanged if it has been removed meanwhile."""
    path = directory() / f"{query.id}.json"
    return _read(path) if path.exists() else query


def load_all() -> list[DeployedQuery]:
    """Load all saved queries, oldest first."""
    return sorted(map(_read, directory().glob("*.json")), key=lambda query: query.registered)


@contextmanager
def watched(query: DeployedQuery) -> Iterator[None]:
    """Lock the query for watching, on this account. Raises ClickException if another process watches it."""
    with _alone(
        query,
        "watch",
        f"another process watches query {query.id} already: leave that process running, or end it first",
    ):
        yield


@contextmanager
def scaled(query: DeployedQuery) -> Iterator[None]:
    """Lock the query for scaling, on this account. Raises ClickException if another process scales it."""
    with _alone(
        query, "scale", f"another process is scaling query {query.id}: wait until it has ended, and retry"
    ):
        yield


@contextmanager
def added_to(query: DeployedQuery) -> Iterator[None]:
    """Lock the query for adding views, on this account. Raises ClickException if another process adds one."""
    with _alone(
        query,
        "add",
        f"another process is adding a view to query {query.id}: wait until it has ended, and retry",
    ):
        yield


@contextmanager
def _alone(query: DeployedQuery, what: str, otherwise: str) -> Iterator[None]:
    with (directory() / f".{query.id}.{what}").open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise click.ClickException(otherwise) from None
        yield


def forget(query: DeployedQuery) -> None:
    """Delete a saved query."""
    for name in (f"{query.id}.json", f".{query.id}.watch", f".{query.id}.scale", f".{query.id}.add"):
        (directory() / name).unlink(missing_ok=True)


def _read(path: Path) -> DeployedQuery:
    from nebuli.control.deployed_queries import DeployedQuery
    from topology.connectors import unusable

    try:
        return DeployedQuery.model_validate_json(path.read_text("utf-8"))
    except (ValidationError, OSError) as error:
        if isinstance(error, ValidationError) and (lacking := unusable(error)):
            raise click.ClickException(
                f"query {path.stem} uses a connector that is not available here: {lacking}; install its package"
            ) from error
        raise click.ClickException(f"{path} is not a valid saved query: {error}; remove the file") from error
