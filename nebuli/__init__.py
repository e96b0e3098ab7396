"""The system over topology, placement and network channels: workers, their engine, and the command line."""

__version__ = "0.1.0"
