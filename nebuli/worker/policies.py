"""The policies of a fragment's channels: those that its operators carry, over the worker's own."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import netchannel

if TYPE_CHECKING:
    from topology import BufferSettings, FaultSettings

__all__ = ["received", "sent", "tried"]

_BUFFER = netchannel.BufferPolicy(max_bytes=8 << 20)
"""What a fragment is ahead of its reader, at most, at either end of a channel; more would only be memory."""


def sent(settings: BufferSettings | None) -> netchannel.BufferPolicy:
    """Of a channel's sender."""
    return _BUFFER if settings is None else replace(_BUFFER, **settings.model_dump())


def received(settings: BufferSettings | None) -> netchannel.BufferPolicy:
    """Of its receiver, which holds back its sender when it is full, whatever the settings say of that."""
    given = {} if settings is None else settings.model_dump(include={"max_bytes", "max_messages"})
    return replace(_BUFFER, **given)


def tried(settings: FaultSettings | None) -> netchannel.FaultPolicy:
    """Of either."""
    return netchannel.FaultPolicy() if settings is None else netchannel.FaultPolicy(**settings.model_dump())
