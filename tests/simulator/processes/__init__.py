"""The same promises, and all that runs above the cores: servers, channels, the runner and asyncio's own transports.

Two processes use the public API, each on an event loop of its own in virtual time, over a simulated network and disk.
"""

from __future__ import annotations

from .simulation import simulate

__all__ = ["simulate"]
