"""Fragments that run free: what moves their batches, and the engines that compute them, with one protocol."""

from nebuli.free.engine import Engine
from nebuli.free.selection import engine_of

__all__ = ["Engine", "engine_of"]
