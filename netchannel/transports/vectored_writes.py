"""Writes of many buffers, around what some versions of asyncio have wrong."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING

import uvloop

if TYPE_CHECKING:
    from collections.abc import Sequence

    from netchannel.wire.frames import Buffer

NEVER_PAUSES = (3, 12) <= sys.version_info < (3, 12, 9) or (3, 13) <= sys.version_info < (3, 13, 2)
"""asyncio's own `writelines` takes any amount, and never pauses its protocol (CPython issue 127655)."""


def write_all(transport: asyncio.Transport, buffers: Sequence[Buffer]) -> None:
    """Write ``buffers``, in order; on a transport that is closing they go nowhere.

    Some versions of asyncio's own `writelines` would watch a descriptor that is closed (CPython issue 136234).
    """
    if transport.is_closing():
        return
    if NEVER_PAUSES and not isinstance(asyncio.get_running_loop(), uvloop.Loop):
        transport.write(b"".join(buffers))
    else:
        transport.writelines(buffers)
