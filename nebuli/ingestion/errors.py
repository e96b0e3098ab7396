"""What goes wrong between a source and its collection.

::

    IngestionError
    ├── DefinitionInvalid   a file that does not say what is to be ingested
    ├── SourceUnknown       there is none of that name
    ├── SourceExists        there is one of that name
    ├── SourceRefused       what was asked of a source cannot be
    ├── SourceAway          nobody answers where it should be: tried again
    ├── SourceUnusable      it is there, and is not as the definition says
    ├── AddressGone         the source does not have what comes next any more
    ├── MessageInvalid      a message that cannot be decoded
    └── SourceConflict      two instances have made different things of the same messages
"""

from __future__ import annotations

from dataclasses import dataclass


class IngestionError(Exception):
    """The message says what happened, where, and what to do. Nothing that was ingested is lost by it."""


class DefinitionInvalid(IngestionError):
    """A file that does not say what is to be ingested; every mistake is in the message, a line for each."""


class SourceUnknown(IngestionError):
    """There is no source of that name."""


class SourceExists(IngestionError):
    """There is a source of that name already."""


class SourceRefused(IngestionError):
    """What was asked of a source cannot be; nothing happened."""


class SourceAway(IngestionError):
    """Nobody answers where the source should be, or the answer did not come: it is tried again."""


class SourceUnusable(IngestionError):
    """The source is there, and is not as the definition says."""


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
