"""Errors between a source and its collection.

::

    IngestionError
    ├── DefinitionInvalid   a file that does not define a source
    ├── SourceUnknown       no source has that name
    ├── SourceExists        a source has that name
    ├── SourceRefused       a request about a source is refused
    ├── SourceAway          no answer at its address: tried again
    ├── SourceUnusable      it is there, and does not match the definition
    ├── AddressGone         the next messages of the source are gone
    ├── MessageInvalid      a message that cannot be decoded
    └── SourceConflict      two instances have made different things of the same messages
"""

from __future__ import annotations

from dataclasses import dataclass


class IngestionError(Exception):
    """The message has the error, the place, and the remedy. Nothing that was ingested is lost by it."""


class DefinitionInvalid(IngestionError):
    """A file that does not define a source; every mistake is in the message, a line for each."""


class SourceUnknown(IngestionError):
    """There is no source of that name."""


class SourceExists(IngestionError):
    """There is a source of that name already."""


class SourceRefused(IngestionError):
    """A request about a source is refused; nothing happened."""


class SourceAway(IngestionError):
    """The source does not answer at its address: it is tried again."""


class SourceUnusable(IngestionError):
    """The source is there, and does not match the definition."""


class AddressGone(IngestionError):
    """The source does not have the message that comes next any more, or another one in its place."""


@dataclass(frozen=True, slots=True)
class MessagePlace:
    """Where a message is: of which raw source, in which part of it, at which address."""

    raw_source: str
    part: str
    address: int


class MessageInvalid(IngestionError):
    """A message that cannot be decoded; what is before it is ingested, and it is read again once that is fixed."""

    place: MessagePlace | None = None
    """Where it is, if it can be passed over; None: what is wrong is between it and others."""


class SourceConflict(IngestionError):
    """Two instances have made different things of the same messages: the collection wants a new rendition."""
