"""Who may call a circuit: the certificates and the secret of its topology, as between workers and commands.

A circuit has no name of its own that both sides know, as workers have that of their node: proofs are for any circuit.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from nebuli.rpc import secured
from nebuli.rpc.proof import Checking, Proofs
from nebuli.rpc.trust import Trust

if TYPE_CHECKING:
    import grpc.aio

_ANY = "circuit"


def dial(address: str, trust: Trust) -> grpc.aio.Channel:
    """A channel to the circuit at an address, whose certificate is for its host. Raises CertificateError."""
    if trust.tls is not None:
        host = trust.tls.server_name or address.rpartition(":")[0].strip("[]")
        trust = Trust(replace(trust.tls, server_name=host), trust.secret)
    return secured.dial(_ANY, address, trust, ("grpc.max_receive_message_length", -1))  # one row may be large


def interceptors(trust: Trust) -> list[Checking]:
    """What a circuit's server asks of each call."""
    return [] if trust.secret is None else [Checking(Proofs(trust.secret, _ANY, "this circuit"))]
