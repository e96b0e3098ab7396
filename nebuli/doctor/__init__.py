"""The problems of a fleet, and their remedies.

``examine`` asks workers and has them probe the links between them; what they say is judged by ``judgement``.
"""

from nebuli.doctor.examination import Fleet, examine
from nebuli.doctor.judgement import Check

__all__ = ["Check", "Fleet", "examine"]
