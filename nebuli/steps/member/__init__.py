"""A circuit's member: one process, which works on its part of every step in lockstep with the others."""

from nebuli.steps.errors import MemberError
from nebuli.steps.member.exchange import Exchange

__all__ = ["Exchange", "MemberError"]
