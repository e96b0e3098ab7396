"""Durable histories: shards of Z-sets over times, and what circuits keep in them. Knows times, no channels."""

from nebuli.storage.errors import FINISHED, StorageError
from nebuli.storage.shards.shard import Shard, Span
from nebuli.storage.states.state_store import Database, StateStore
from nebuli.storage.store import Store

__all__ = ["FINISHED", "Database", "Shard", "Span", "StateStore", "StorageError", "Store"]
