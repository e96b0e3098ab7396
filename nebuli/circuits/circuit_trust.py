"""The permission to call a circuit: the certificates and the secret of its topology, as between workers and commands.

Proofs are for one query of a worker. A circuit that is served on its own has no name that both sides know: proofs are
for any such circuit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.rpc import transport_security
from nebuli.rpc.proof import Checking, Proofs
from nebuli.rpc.trust import Trust

if TYPE_CHECKING:
    import grpc.aio


def dial(address: str, query: str, trust: Trust) -> grpc.aio.Channel:
    """A channel to the circuit at an address, whose certificate is for its host. Raises CertificateError.

    ``query`` is its id at a worker, or empty.
    """
    if trust.tls is not None:
        host = trust.tls.server_name or address.rpartition(":")[0].strip("[]")
        trust = Trust(replace(trust.tls, server_name=host), trust.secret)
    return transport_security.dial(
        _name(query), address, trust, ("grpc.max_receive_message_length", -1)
    )  # rows may be large


def interceptors(trust: Trust) -> list[Checking]:
    """Return the checks of each call at the server of a circuit that is served on its own."""
    return [] if trust.secret is None else [Checking(proofs(trust.secret))]


def proofs(secret: str, query: str = "") -> Proofs:
    """Return the proofs against which calls to a circuit are checked."""
    called = f"the worker of query {query}" if query else "this circuit"
    return Proofs(secret, _name(query), called)


def _name(query: str) -> str:
    return f"circuit/{query}" if query else "circuit"
