"""The address of a circuit that is given to a command, and the certificates and secret for it."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nebuli.cli import saved_queries

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from nebuli.circuits import Circuit
    from nebuli.rpc.trust import Trust


def trust_of(topology: str | None) -> Trust:
    """Return the certificates and the secret of a topology, or none without a topology."""
    from nebuli.cli.files import load_topology
    from nebuli.rpc.trust import NO_TRUST, Trust
    from topology import Access

    if topology is None:
        return NO_TRUST
    model = load_topology(topology)
    return Trust.of(Access(tls=model.tls, secret=model.secret).below(Path(topology).resolve().parent))


@asynccontextmanager
async def reached(circuit: str, trust: Trust, within_s: float) -> AsyncIterator[Circuit]:
    """Connect to a circuit at HOST:PORT, or to that of a registered query with its topology's certificates and secret.

    Raises ClickException, CircuitError.
    """
    from nebuli.circuits import Circuit

    address = circuit
    if ":" not in circuit:
        address, trust = _registered(circuit)
    async with Circuit(address, secret=trust.secret, tls=trust.tls, deadline_s=within_s) as found:
        yield found


def _registered(id_: str) -> tuple[str, Trust]:
    """Return a query's address, and the certificates and secret for it. Raises ClickException."""
    from nebuli.rpc.trust import Trust

    found = saved_queries.load(id_)
    if found.circuit is None:
        raise click.ClickException(
            f"query {found.id} does not run in steps, so it has no contents to read: register it with --stepped"
        )
    return found.circuit, Trust.of(found.fragments[-1].access)  # those of its coordinator's worker
