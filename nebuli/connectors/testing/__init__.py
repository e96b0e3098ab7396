"""The requirements of a connector, as tests to run it through. Needs pytest."""

from __future__ import annotations

try:
    import pytest
except ImportError as error:
    raise ImportError("nebuli.connectors.testing needs pytest: pip install pytest") from error

pytest.register_assert_rewrite(
    *(f"{__name__}.{module}" for module in ("connector_driver", "sinks", "sources"))
)

from .sinks import VALUES, SinkConformance  # noqa: E402 - only now are its asserts explained when they fail
from .sources import SourceConformance  # noqa: E402 - the same

__all__ = ["VALUES", "SinkConformance", "SourceConformance"]
