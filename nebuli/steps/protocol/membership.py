"""The members of a circuit: the network name of each, in the order of their indices, and the index of this one.

There are three ways to configure them. A list: ``--members host-a:7000,host-b:7000``. The environment:
``NEBULI_MEMBERS`` with the same list, and ``NEBULI_MEMBER`` with the own index. A StatefulSet, or any other system that
names its processes ``NAME-INDEX``: ``NEBULI_MEMBERS`` is a number, and the own host name gives the rest.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from nebuli.steps.protocol.errors import MembershipUnclear

if TYPE_CHECKING:
    from collections.abc import Mapping

MEMBERS = "NEBULI_MEMBERS"
MEMBER = "NEBULI_MEMBER"
HOST_NAME = "HOSTNAME"
SERVICE = "NEBULI_SERVICE"
PORT = "NEBULI_PORT"
MEMBERS_LIMIT = 1 << 10
_ORDINAL = re.compile(r"(?P<name>.+)-(?P<ordinal>0|[1-9]\d{0,8})")
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.]+\]|[^\s:,\[\]]+):(?P<port>\d{1,5})")


@dataclass(frozen=True, slots=True)
class Membership:
    """``addresses`` of all members, HOST:PORT, by index; ``own`` is the index of this process."""

    addresses: tuple[str, ...]
    own: int

    def __post_init__(self) -> None:
        """Raise MembershipUnclear."""
        _check_number(len(self.addresses))
        for address in self.addresses:
            found = _ADDRESS.fullmatch(address)
            if found is None or not 0 < int(found["port"]) < 1 << 16:
                raise MembershipUnclear(f"the member {address!r} is no address: write HOST:PORT")
        twice = [each for each in self.addresses if self.addresses.count(each) > 1]
        if twice:
            raise MembershipUnclear(f"the member {twice[0]} is in the list twice: name each one once")
        if not 0 <= self.own < len(self.addresses):
            raise MembershipUnclear(
                f"there are {len(self.addresses)} members, and this is number {self.own}: the first one is 0"
            )


def from_list(text: str, own: int) -> Membership:
    """The members in a list of addresses with commas between them. Raises MembershipUnclear."""
    return Membership(tuple(each.strip() for each in text.split(",")), own)


def of_stateful_set(host_name: str, members: int, service: str, port: int) -> Membership:
    """Return the members of a process whose host name is ``NAME-INDEX``, with or without its domain; all have one NAME.

    ``service`` is the domain that their names are found in; if it is empty, that of the own host name. Raises
    MembershipUnclear.
    """
    _check_number(members)
    label, _, domain = host_name.partition(".")
    found = _ORDINAL.fullmatch(label)
    if found is None:
        raise MembershipUnclear(
            f"the host name {host_name!r} does not end in an index, as circuit-0 does: give the list of members in "
            f"{MEMBERS} and the own index in {MEMBER}"
        )
    end = f".{service or domain}" if service or domain else ""
    names = [f"{found['name']}-{index}{end}:{port}" for index in range(members)]
    return Membership(tuple(names), int(found["ordinal"]))


def from_environment(environment: Mapping[str, str]) -> Membership:
    """Read the members. Raises MembershipUnclear, which names the missing variable."""
    members = _said(environment, MEMBERS, "the list of members, or how many there are").strip()
    if not members.isdecimal():
        return from_list(members, _number(MEMBER, _said(environment, MEMBER, "the index of this member")))
    host_name = _said(environment, HOST_NAME, "the name of this host")
    port = _number(PORT, _said(environment, PORT, "the port that all members listen at"))
    return of_stateful_set(host_name, _number(MEMBERS, members), environment.get(SERVICE, ""), port)


def _said(environment: Mapping[str, str], name: str, what: str) -> str:
    if not environment.get(name):
        raise MembershipUnclear(f"{name} is not set: set it to {what}")
    return environment[name]


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise MembershipUnclear(f"{name} is {text[:40]!r}, which is no number")
    return int(text)


def _check_number(members: int) -> None:
    if not 0 < members <= MEMBERS_LIMIT:
        raise MembershipUnclear(f"there are {members} members: a circuit has 1 to {MEMBERS_LIMIT}")
