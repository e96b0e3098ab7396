"""Durable histories: shards of Z-sets over times, and what circuits keep in them. Knows times, no channels."""

from nebuli.store.errors import FINISHED, StorageError
from nebuli.store.shards.shard import Shard, Span
from nebuli.store.states.state_store import Database, StateStore
from nebuli.store.store import Store

__all__ = ["FINISHED", "Database", "Shard", "Span", "StateStore", "StorageError", "Store"]
