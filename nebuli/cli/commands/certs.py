"""``nebuli certs``: certificates for development."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
from pathlib import Path

import click

from nebuli.cli.bounds import FilePath

AUTHORITY = "authority"
_LOCAL = ("localhost", "127.0.0.1", "::1")
_HOST = re.compile(r"(?!-)[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)*")


@click.group()
def certs() -> None:
    """Create TLS certificates for development."""


def _checked(context: click.Context, parameter: click.Parameter, hosts: tuple[str, ...]) -> tuple[str, ...]:
    for host in hosts:
        if host == AUTHORITY:
            message = f"the name {host!r} is reserved for the authority's file: use another name for the host"
            raise click.BadParameter(message, context, parameter)
        if not _HOST.fullmatch(host) and not _is_address(host):
            raise click.BadParameter(
                f"invalid host {host!r}: expected a name or an IP address", context, parameter
            )
    return tuple(dict.fromkeys(hosts))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


@certs.command()
@click.option("--directory", type=FilePath(), default="certs", show_default=True, help="Output directory.")
@click.option(
    "--host",
    "hosts",
    multiple=True,
    callback=_checked,
    help="Name or IP address by which others connect to a node. Repeat it for more nodes.  [default: localhost]",
)
@click.option(
    "--days",
    default=30,
    show_default=True,
    type=click.IntRange(1, 365),
    help="Days until the certificates expire.",
)
@click.option("--force", is_flag=True, help="Replace existing files.")
def dev(directory: str, hosts: tuple[str, ...], days: int, force: bool) -> None:
    """Create an authority, and a certificate for each node.

    For development only. Prints for each node the value of the argument tls= of its servers. Discards the authority's
    own key.
    """
    try:
        from nebuli.cli.development import DevelopmentAuthority
    except ImportError as error:
        raise click.ClickException(
            f"creating certificates requires the package cryptography ({error}): pip install 'nebuli[certs]', or make "
            f"setup in a clone"
        ) from error

    nodes = {host: [host] for host in hosts} or {_LOCAL[0]: list(_LOCAL)}
    place = Path(directory)
    authority_file = place / f"{AUTHORITY}.pem"
    files = {host: (place / f"{host}.pem", place / f"{host}.key") for host in nodes}
    _make_room([authority_file, *(file for pair in files.values() for file in pair)], force=force)
    authority = DevelopmentAuthority(datetime.timedelta(days=days))
    place.mkdir(parents=True, exist_ok=True)
    _write(authority_file, authority.certificate, 0o644)
    for host, names in nodes.items():
        certificate, key = authority.issue(host, names)
        certificate_file, key_file = files[host]
        _write(key_file, key, 0o600)
        _write(certificate_file, certificate, 0o644)
        click.echo(f'Tls("{certificate_file}", "{key_file}", "{authority_file}")')
    click.echo(f"for development only; valid until {authority.ends:%Y-%m-%d %H:%M} UTC", err=True)


def _make_room(files: list[Path], *, force: bool) -> None:
    there = [str(file) for file in files if file.exists()]
    if there and not force:
        raise click.ClickException(
            f"{', '.join(there)} {'exists' if len(there) == 1 else 'exist'} already: give another "
            f"--directory, or replace the certificates of all hosts at once with --force, because "
            f"a new authority rejects the old certificates"
        )
    for file in files:
        file.unlink(missing_ok=True)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Create a file that has ``mode`` from its first moment on."""
    with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as stream:
        stream.write(content)
