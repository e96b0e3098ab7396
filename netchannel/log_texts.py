"""The logger, and texts of others as they may stand in it."""

from __future__ import annotations

import logging

log = logging.getLogger("netchannel")


def because(event: str, why: object) -> str:
    """An event as a log line says it, with its reason if there is one."""
    return f"{event}: {printable(str(why))}" if why else event


def printable(text: str) -> str:
    """What others say, as it may stand in a log or a label: on one line, and no longer than a message of ours."""
    return text[:1000] if text.isprintable() else ascii(text[:1000])


def encodable(text: str) -> str:
    """``text`` as UTF-8 can hold it: a file name from the system may have bytes in it that are none (surrogates)."""
    return text.encode(errors="backslashreplace").decode()
