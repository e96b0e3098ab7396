"""Errors of reads of views.

::

    ViewError
    ├── ViewUnreachable     there is no answer, or not in time
    │   └── ViewDenied      the server refuses this client
    ├── UnknownView         no view has that name
    ├── WrongKey            it is not a key of the view
    ├── WrongView           the query cannot have the new view
    ├── LookupTimedOut      some keys were not there before the deadline; the error has the others
    ├── RunsFree            steps were asked for, and its query has none
    └── ViewFailed          the view could not do it
        └── ViewsClosed     these Views were closed meanwhile, or never entered
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nebuli.views.values import Lookup

__all__ = [
    "LookupTimedOut",
    "RunsFree",
    "UnknownView",
    "ViewDenied",
    "ViewError",
    "ViewFailed",
    "ViewUnreachable",
    "ViewsClosed",
    "WrongKey",
    "WrongView",
]


class ViewError(Exception):
    """A read of a view has not given what was asked for."""


class ViewUnreachable(ViewError):
    """There is no answer, or not in time."""


class ViewDenied(ViewUnreachable):
    """The server refuses this client: another secret, or certificates that are not trusted."""


class UnknownView(ViewError):
    """There is no view of that name."""


class WrongKey(ViewError):
    """The value is not a key of the view."""


class WrongView(ViewError):
    """The query cannot have the views that are to be added; the message has every mistake."""


class RunsFree(ViewError):
    """Steps were asked for, and the query of the view runs free, and has none."""


class ViewFailed(ViewError):
    """The view could not do it."""


class ViewsClosed(ViewFailed):
    """The `Views` that were asked were closed meanwhile, or never entered."""


class LookupTimedOut(ViewError):
    """Some keys were not there before the deadline. ``found`` has those that were, ``missing`` the others."""

    def __init__(self, message: str, found: Lookup, missing: list[tuple[object, ...]]) -> None:
        super().__init__(message)
        self.found = found
        self.missing = missing
