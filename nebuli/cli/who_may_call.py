"""Who may call what a command serves, and that it is served over HTTP at all."""

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
    """What whoever calls is to show: what a topology says, whose files are below a directory.

    ``addresses`` are those of options. Raises UsageError where nothing is asked for, and anybody ``can`` do that.
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
                f"{option} {address} can be reached from other machines, and without TLS and a secret whoever connects "
                f"can {can}: name tls or a secret in the topology"
            )
    return trust


def http_server() -> ModuleType:
    """What serves over HTTP. Raises UsageError where packages are not installed."""
    try:
        from nebuli.http import http_server
    except ImportError as error:
        raise click.UsageError(f"--http needs more packages ({error}): pip install 'nebuli[http]'") from None
    return http_server
