"""The policies of a fragment's channels: those that its operators carry, over the worker's own."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import netchannel
from netchannel.storage.layout import folder_name
from placement.plan import NetworkSink

if TYPE_CHECKING:
    from placement.stepped_plan import AnyFragment
    from topology import BufferSettings, FaultSettings

__all__ = ["drop_files", "received", "sent", "tried"]

_BUFFER = netchannel.BufferPolicy(max_bytes=8 << 20)
"""How far a fragment may be ahead of its reader, at either end of a channel; more would only be memory."""


def sent(settings: BufferSettings | None, *, resumed: bool = False) -> netchannel.BufferPolicy:
    """The policy of a channel's sender; in memory if ``resumed``, since what was not received is made again."""
    policy = _BUFFER if settings is None else replace(_BUFFER, **settings.model_dump())
    if resumed and policy.directory is not None:
        return replace(policy, directory=None, max_disk_bytes=None)
    return policy


def drop_files(fragment: AnyFragment) -> None:
    """Remove the rest of a durable buffer, which no process continues: its channel is one deployment's own."""
    for operator in fragment.operators:
        if isinstance(operator, NetworkSink) and operator.buffer is not None and operator.buffer.directory:
            folder = Path(operator.buffer.directory) / folder_name(operator.channel)
            shutil.rmtree(folder, ignore_errors=True)  # usually there are none


def received(settings: BufferSettings | None) -> netchannel.BufferPolicy:
    """The policy of a channel's receiver, which holds back the sender when full, regardless of the settings."""
    given = {} if settings is None else settings.model_dump(include={"max_bytes", "max_messages"})
    return replace(_BUFFER, **given)


def tried(settings: FaultSettings | None) -> netchannel.FaultPolicy:
    """The fault policy of a sender or receiver."""
    return netchannel.FaultPolicy() if settings is None else netchannel.FaultPolicy(**settings.model_dump())
