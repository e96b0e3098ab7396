"""What a peer may say that is no message of ours: any map, as a control connection carries it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgpack

from netchannel.core.envelope import enclosed


def forged(fields: Mapping[str, Any]) -> bytes:
    """A control message of these fields, whatever they hold."""
    return enclosed(msgpack.packb(fields))
