"""The table of schemes, which maps addresses to transports."""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

from . import memory, tcp, unix

if TYPE_CHECKING:
    from .interface import Listener, MakeProtocol, Transport

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_table: dict[str, Transport] = {"tcp": tcp, "unix": unix, "mem": memory}


def register(scheme: str, transport: Transport) -> None:
    """Addresses of this process that begin with ``scheme:`` are ``transport``'s from now on.

    A host of that name is then not a TCP address any more. Raises ValueError if the scheme is taken or malformed.
    """
    if not _SCHEME.fullmatch(scheme):
        raise ValueError(
            f"{scheme!r} is not a valid scheme: expected a letter, then letters, digits, '+', '.' or '-'"
        )
    if scheme in _table:
        raise ValueError(f"the scheme {scheme!r} is taken: unregister it first, or choose another")
    _table[scheme] = transport


def unregister(scheme: str) -> None:
    """Forget a scheme that was registered; connections that are open stay. Raises KeyError if it was not."""
    del _table[scheme]


def scheme_of(address: str) -> str:
    """Return the scheme that ``address`` begins with; ``tcp`` if that is not a known one."""
    if not isinstance(address, str):
        raise TypeError(f"an address is {address!r}: expected a string, such as 'host:port'")
    scheme = address.partition(":")[0]
    return scheme if scheme in _table else "tcp"


def check(address: str) -> None:
    """Raise ValueError if ``address`` cannot be dialed."""
    _table[scheme_of(address)].check(address)


async def connect(address: str, make_protocol: MakeProtocol) -> None:
    """Connect to ``address``. Raises OSError, or ValueError if it is malformed."""
    await _table[scheme_of(address)].connect(address, make_protocol)


async def listen(address: str, make_protocol: MakeProtocol) -> Listener:
    """Accept connections at ``address``. Raises OSError naming it, or ValueError if it is malformed."""
    try:
        return await _table[scheme_of(address)].listen(address, make_protocol)
    except UnicodeError as error:  # a host that cannot be a name
        raise ValueError(f"cannot listen on {address!r}: {error}") from error
    except OSError as error:
        # The loop's own text names the address again; the system's is enough. Names that are not known have no number.
        why = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else str(error)
        hint = (
            "; stop the process that listens there, or choose another port"
            if error.errno == errno.EADDRINUSE
            else ""
        )
        raise OSError(error.errno, f"cannot listen on {address}: {why}{hint}") from error
