"""Who computes a fragment: one protocol for all engines, and which one it is."""

from nebuli.engines.engine import Engine
from nebuli.engines.selection import engine_of

__all__ = ["Engine", "engine_of"]
