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
"""Characters of an id that no query has."""


def state_directory() -> Path:
    """What is to last, of this account."""
    state = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(state) / "nebuli"


def directory() -> Path:
    """The directory of saved queries."""
    return state_directory() / "queries"


def save(query: DeployedQuery) -> None:
    """Keep a query, whole or not at all. Raises ClickException if there is no place for it."""
    from nebuli.durable_files import make_directory, write_durably

    folder = directory()
    try:
        make_directory(folder)
        write_durably(folder / f"{query.id}.json", query.model_dump_json(indent=2, by_alias=True))
    except OSError as error:
        raise click.ClickException(
            f"query {query.id} cannot be kept in {folder}: {error.strerror or error}; make room, or set XDG_STATE_HOME "
            f"to a directory that can be written"
        ) from error


def load(id_: str) -> DeployedQuery:
    """The query with this id, or the only one whose id begins so. Raises ClickException for none and for several."""
    if not id_:  # every id begins so, and an empty variable does not mean the only query
        raise click.ClickException("expected the id of a query, got an empty text; 'nebuli list' shows them")
    known = sorted(path.stem for path in directory().glob("*.json"))
    if not known:
        raise click.ClickException(
            f"no query has the id {id_[:_SHOWN]!r}, and none is registered (in {directory()}): 'nebuli start TOPOLOGY "
            f"QUERY' registers one and starts it"
        )
    found = [each for each in known if each == id_] or [each for each in known if each.startswith(id_)]
    if len(found) != 1:
        from topology.consistency import did_you_mean

        which = "several queries begin with" if found else "no query has"
        meant = "" if found else did_you_mean(id_, known)
        raise click.ClickException(
            f"{which} the id {id_[:_SHOWN]!r}{meant}: {', '.join(found or known)} (in {directory()}); "
            f"'nebuli list' shows them"
        )
    return _read(directory() / f"{found[0]}.json")


def again(query: DeployedQuery) -> DeployedQuery:
    """The query as it is now; as it was, if it has been forgotten meanwhile."""
    path = directory() / f"{query.id}.json"
    return _read(path) if path.exists() else query


def load_all() -> list[DeployedQuery]:
    """All saved queries, the oldest first."""
    return sorted(map(_read, directory().glob("*.json")), key=lambda query: query.registered)


@contextmanager
def watched(query: DeployedQuery) -> Iterator[None]:
    """Be the only one that watches the query, on this account. Raises ClickException if another one does."""
    with _alone(query, "watch", f"query {query.id} is watched already: one watcher is enough"):
        yield


@contextmanager
def scaled(query: DeployedQuery) -> Iterator[None]:
    """Be the only one that scales the query, on this account. Raises ClickException if another one does."""
    with _alone(query, "scale", f"query {query.id} is being scaled already: wait for that, and try again"):
        yield


@contextmanager
def added_to(query: DeployedQuery) -> Iterator[None]:
    """Be the only one that adds views to the query, on this account. Raises ClickException if another one does."""
    with _alone(
        query, "add", f"query {query.id} is being given a view already: wait for that, and try again"
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
    """Keep it no more."""
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
                f"query {path.stem} has a connector that cannot be had here: {lacking}; install its package"
            ) from error
        raise click.ClickException(f"{path} is no query that was registered: {error}; remove it") from error
