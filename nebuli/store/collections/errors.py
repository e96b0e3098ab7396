"""Errors of collections, in addition to those of their store.

::

    StorageError
    └── CollectionError
        ├── CollectionUnknown    no collection has that name
        │   └── CollectionDropped  it was dropped while this client used it
        ├── CollectionExists     there is one of that name
        ├── CollectionMisused    it does not take the given rows
        │   └── RowsMismatch       rows of another schema
        ├── ConflictingWrite     two writers have written different rows at one time
        ├── RenditionUnknown     the collection has no rendition of that name
        ├── RenditionOver        the one that was written was handed over from
        ├── RenditionRefused     it cannot be made, dropped or handed over to
        │   └── HandoverLate       not within its deadline: others were first, again and again
        └── TooLate              a time that can no longer be read
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from nebuli.store.errors import StorageError

if TYPE_CHECKING:
    from collections.abc import Iterable


class CollectionError(StorageError):
    """The collection could not do it; the message has the cause and the remedy."""


class CollectionUnknown(CollectionError):
    """There is no collection of that name."""

    def __init__(self, name: str, names: Iterable[str] = ()) -> None:
        self.name = name
        known = ", ".join(sorted(names)[:10])
        super().__init__(
            f"unknown collection {name}: "
            + (f"expected one of {known}, or create it first" if known else "create it first")
        )


class CollectionDropped(CollectionUnknown):
    """The collection was dropped while this client read or wrote it; all that was in it is gone."""

    def __init__(self, name: str) -> None:
        self.name = name
        CollectionError.__init__(
            self,
            f"collection {name} was dropped with its rows while in use here: stop using it, or "
            f"create a collection of this name again",
        )


class CollectionExists(CollectionError):
    """There is a collection of that name."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"collection {name} exists already: choose another name, or drop it first")


class CollectionMisused(CollectionError):
    """The collection does not take what was given to it; nothing was written."""


class RowsMismatch(CollectionMisused):
    """Rows have another schema than the collection; nothing was written."""

    def __init__(self, name: str, expected: object, found: object) -> None:
        self.name = name
        super().__init__(
            f"the rows of collection {name} have {_line(expected)}; the given rows have {_line(found)}: "
            f"cast them, or create a collection with their schema"
        )


class ConflictingWrite(CollectionError):
    """A writer has other rows for a time than those that are written there.

    Writers of one rendition have to write the same. The existing rows stay; none of the others were written.
    """

    def __init__(self, name: str, rendition: str, time: int, here: str, there: str) -> None:
        self.name = name
        self.rendition = rendition
        self.time = time
        super().__init__(
            f"rendition {rendition} of collection {name} has other rows at time {time} than this "
            f"writer (only in the rendition: {there}; only at this writer: {here}). All writers "
            f"of a rendition must write the same rows: find the difference between the writers, "
            f"write a new rendition from scratch, and hand over to it"
        )


class RenditionUnknown(CollectionError):
    """The collection has no rendition of that name."""

    def __init__(self, name: str, rendition: str, renditions: Iterable[str]) -> None:
        self.name = name
        self.rendition = rendition
        super().__init__(
            f"collection {name} has no rendition {rendition}: it has {', '.join(sorted(renditions))}"
        )


class RenditionOver(CollectionError):
    """The collection is another rendition than the one that this client wrote; nothing was written."""

    def __init__(self, name: str, rendition: str, now: str, begin: int) -> None:
        self.name = name
        self.rendition = rendition
        super().__init__(
            f"this client writes rendition {rendition} of collection {name}, but the current rendition from "
            f"time {begin} on is {now}: if the client's rows are also right for the current rendition, "
            f"continue with rendition={now!r}; otherwise end the client"
        )


class RenditionRefused(CollectionError):
    """A rendition cannot be made, dropped, or handed over to; nothing happened."""


class HandoverLate(RenditionRefused):
    """A handover was not made within its deadline; the collection is what it was, and it can be made again."""

    def __init__(self, name: str, rendition: str, deadline_s: float, lost: int) -> None:
        self.name = name
        self.rendition = rendition
        super().__init__(
            f"collection {name} was not handed over to rendition {rendition} within {deadline_s:g} s (attempts "
            f"in which another writer was first: {lost}). Hand over again, with the same arguments and a "
            f"longer deadline, or let the writers pause meanwhile"
        )


class TooLate(CollectionError):
    """Contents at a time that can no longer be distinguished from later ones."""

    def __init__(self, name: str, asked: int, since: int) -> None:
        self.name = name
        self.asked = asked
        self.since = since
        super().__init__(
            f"collection {name} cannot be read at time {asked} any more, only at times from {since} on: give "
            f"such a time, keep a hold as long as you read, or create collections with a longer history"
        )


def _line(what: object) -> str:
    return str(what).replace("\n", ", ")
