"""The system over topology, placement and network channels: workers, their engine, and the command line."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nebuli.circuits import Circuit

__version__ = "0.1.0"
__all__ = ["Circuit"]


def __getattr__(name: str) -> Any:
    """What is public, imported when it is first asked for: commands start without it."""
    if name in __all__:
        from nebuli import circuits

        return getattr(circuits, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
