"""What is wrong with a fleet, and what to do about it.

``examine`` asks workers and has them probe the links between them; what they say is judged by ``judging``.
"""

from nebuli.doctor.examining import Fleet, examine
from nebuli.doctor.judging import Check

__all__ = ["Check", "Fleet", "examine"]
