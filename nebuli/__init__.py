"""Queries over several machines: workers, their engine, clients and the command line."""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nebuli.circuits import Circuit
    from nebuli.control.local_queries import collect, run
    from nebuli.ingestion.source_client import Sources
    from nebuli.store.collections.collections import Collections
    from nebuli.views import Views
    from placement.query_builder import Relation, source

# gRPC has handlers for forks, as uvloop does them, which run in children that only ever exec: one that aborts there, or
# waits forever, is not a member. It looks at this once, when it is used first.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

__version__ = "0.1.0"
_HOMES = {
    "Circuit": "nebuli.circuits",
    "Collections": "nebuli.store.collections.collections",
    "Relation": "placement.query_builder",
    "Sources": "nebuli.ingestion.source_client",
    "Views": "nebuli.views",
    "collect": "nebuli.control.local_queries",
    "run": "nebuli.control.local_queries",
    "source": "placement.query_builder",
}
__all__ = ["Circuit", "Collections", "Relation", "Sources", "Views", "collect", "run", "source"]


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: commands start without them."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
