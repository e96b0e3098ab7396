"""The access to a command's servers: certificates and secret, and the packages for HTTP."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from types import ModuleType

    from nebuli.rpc.trust import Trust
    from topology import Topology


def trust_at(
    addresses: Mapping[str, str | None], topology: Topology | None, directory: Path, can: str
) -> Trust:
    """Return the certificates and the secret of callers, from a topology whose files are below ``directory``.

    ``addresses`` are by option. Raises UsageError if an address is open to other machines without either: then any
    client ``can`` do that.
    """
    from nebuli.node.exposure import is_loopback
    from nebuli.rpc.trust import NO_TRUST, Trust
    from topology import Access
    from topology.address import check_address

    trust = NO_TRUST
    if topology is not None:
        trust = Trust.of(Access(tls=topology.tls, secret=topology.secret).below(directory))
    for option, address in addresses.items():
        if address is None:
            continue
        try:
            check_address(re.sub(r":0$", ":1", address))
        except ValueError as error:
            raise click.UsageError(f"{option}: {error}") from None
        if trust.tls is None and trust.secret is None and not is_loopback(address):
            raise click.UsageError(
                f"{option} {address} can be reached from other machines: without TLS or a secret any client can {can}; "
                f"set tls or secret in the topology, or use a loopback address"
            )
    return trust


def http_server() -> ModuleType:
    """Import the HTTP server. Raises UsageError if its packages are not installed."""
    try:
        from nebuli.http import http_server
    except ImportError as error:
        raise click.UsageError(
            f"--http requires more packages ({error}): pip install 'nebuli[http]'"
        ) from None
    return http_server
