"""The printed form of collections, and their columns, from options and for files."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import click

from nebuli.cli.placement_text import table
from nebuli.cli.rows.times import instant

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from nebuli.store.collections.controller import CollectionStatus
    from topology import DataType, Schema

_COMMA = re.compile(r",(?![^(]*\))")
"""Between columns, and not within the brackets of a type."""


def columns_from(text: str) -> Schema:
    """Parse the columns of ``--schema``. Raises UsageError."""
    from topology import Column

    if not text.isprintable():
        raise click.UsageError(f"--schema: expected printable characters, got {text!r}")
    found: dict[str, Column] = {}
    for each in _COMMA.split(text):
        name, colon, type_ = (part.strip() for part in each.partition(":"))
        if not (name and colon and type_):
            raise click.UsageError(
                f'--schema: invalid column {each.strip()!r}: give names with types, as in "shop: string, amount: int64"'
            )
        if name in found:
            raise click.UsageError(f"--schema: duplicate column {name}: give each column its own name")
        found[name] = Column(name=name, type=_type_from(name, type_))
    return tuple(found.values())


def _type_from(name: str, type_: str) -> DataType:
    from nebuli.connectors.errors import short
    from topology import DataType
    from topology.consistency import did_you_mean
    from topology.schema import type_named

    try:
        found = str(type_named(type_))
    except ValueError as error:
        raise click.UsageError(f"--schema: type of column {name}: {error}") from None
    if found not in [*DataType]:
        raise click.UsageError(
            f"--schema: expected one of {', '.join(DataType)}, or its name in SQL, as type of {name}, got "
            f"{short(type_)!r}{did_you_mean(type_, map(str, DataType))}"
        )
    return DataType(found)


def columns_of(name: str, schema: pa.Schema) -> Schema:
    """Return a collection's columns with the types that readers of files know. Raises ClickException."""
    from topology import Column

    types = _type_names()
    for field in schema:
        if field.type not in types:
            raise click.ClickException(
                f"column {field.name} of collection {name} has the type {field.type}, which cannot be read "
                "from files: insert rows with a program"
            )
    return tuple(Column(name=field.name, type=types[field.type]) for field in schema)


def _type_names() -> dict[pa.DataType, Any]:
    from nebuli.dataflow.types import arrow_type
    from topology import DataType

    return {arrow_type(each): each for each in DataType}


def cells(lines: Sequence[Sequence[object]]) -> list[tuple[str, ...]]:
    """Format the cells of a table."""
    return [tuple("" if each is None else str(each) for each in line) for line in lines]


_RENDITION = ("name", "shards", "since", "upper", "begin", "end", "bytes")


def shown(found: CollectionStatus) -> str:
    """Format the status of a collection for people."""
    from nebuli.dataflow.types import type_name

    columns = ", ".join(f"{each.name}: {type_name(each.type)}" for each in found.schema)
    renditions = [[getattr(each, key) for key in _RENDITION] for each in found.renditions]
    holds = [
        (name, hold.time, "never" if hold.expires is None else instant(round(hold.expires * 1000)))
        for name, hold in sorted(found.holds.items())
    ]
    times = "the store" if found.timed == "store" else "its writers"
    lines = (
        f"collection {found.name} ({columns})",
        f"created {instant(found.created)}, times by {times}, history {found.history_ms / 1000:g} s",
        f"rendition {found.active}, from {found.since} up to but not including {found.upper}",
        "",
        table(("rendition", *_RENDITION[1:]), cells(renditions)),
        "",
        table(("hold", "time", "expires"), cells(holds)),
    )
    return "\n".join(lines)
