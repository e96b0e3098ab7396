"""What is wrong with a fleet, and what to do about it.

``examine`` asks workers and has them probe the links between them; what they say is judged by ``judgement``.
"""

from nebuli.doctor.examination import Fleet, examine
from nebuli.doctor.judgement import Check

__all__ = ["Check", "Fleet", "examine"]
