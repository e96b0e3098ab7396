"""Channels under every fault at once, in virtual time: a run is a function of its seed.

`Simulation` lets a sender's and a receiver's process work through a few hundred messages while links delay, cut, stall
and corrupt, disks tear writes, fill up and stand still, and processes are stopped, killed and lose power. An oracle,
which knows nothing of the protocol, checks every message that a consumer reads and everything that either side is told.

That drives the cores alone. `processes` does the same to all that stands on them.
"""

from __future__ import annotations

from .simulation import Report, Simulation, simulate

__all__ = ["Report", "Simulation", "simulate"]
