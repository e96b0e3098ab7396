"""A circuit's member: one process, which works on its part of every step in lockstep with the others."""

from nebuli.members.errors import MemberError
from nebuli.members.exchange import Exchange

__all__ = ["Exchange", "MemberError"]
