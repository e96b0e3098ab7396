"""Views from outside: a program's connection to those of a node, and its messages."""

from nebuli.views.errors import (
    LookupTimedOut,
    RunsFree,
    UnknownView,
    ViewDenied,
    ViewError,
    ViewFailed,
    ViewsClosed,
    ViewUnreachable,
    WrongKey,
    WrongView,
)
from nebuli.views.values import Lookup, ViewDescription
from nebuli.views.view_client import Views

__all__ = [
    "Lookup",
    "LookupTimedOut",
    "RunsFree",
    "UnknownView",
    "ViewDenied",
    "ViewDescription",
    "ViewError",
    "ViewFailed",
    "ViewUnreachable",
    "Views",
    "ViewsClosed",
    "WrongKey",
    "WrongView",
]
