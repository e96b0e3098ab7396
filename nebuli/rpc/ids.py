"""The ids of queries, of their deployments, and of fragments at workers: each begins with the one before.

A query is known by the id of its first deployment. Each time that it begins again it has another deployment, whose
channels are not mistaken for those of the earlier ones.
"""

from __future__ import annotations

from uuid import uuid4

__all__ = ["local_id", "new_deployment", "new_query", "query_of"]


def new_query() -> str:
    """A new id, of a query and of its first deployment."""
    return uuid4().hex[:12]


def new_deployment(query: str) -> str:
    """A new id, of one more deployment of a query."""
    return f"{query}.{uuid4().hex[:8]}"


def local_id(deployment: str, fragment: str) -> str:
    """The id that a fragment has at its worker: unique to its deployment, and known before the worker knows it."""
    return f"{deployment}/{fragment}"


def query_of(local: str) -> str:
    """The query of a fragment that has this id at its worker; of one without a deployment, the id itself."""
    return local.partition("/")[0].partition(".")[0]
