"""The engines that compute fragments: one protocol for all, and the choice of one."""

from nebuli.engines.engine import Engine
from nebuli.engines.selection import engine_of

__all__ = ["Engine", "engine_of"]
