"""The logger, and texts of others as they may stand in it."""

from __future__ import annotations

import logging

log = logging.getLogger("netchannel")
refusals = logging.getLogger("netchannel.refusals")
"""Logs at level INFO each sender that a receiver does not take, whenever it asks."""


def because(event: str, why: object) -> str:
    """Return an event as a log line shows it, with its reason if there is one."""
    return f"{event}: {printable(str(why))}" if why else event


def printable(text: str) -> str:
    """Return a peer's text in a form fit for a log or a label: on one line, and no longer than our own messages."""
    return text[:1000] if text.isprintable() else ascii(text[:1000])


def encodable(text: str) -> str:
    """Return ``text`` as UTF-8 can hold it: a file name from the system may have invalid bytes in it (surrogates)."""
    return text.encode(errors="backslashreplace").decode()
