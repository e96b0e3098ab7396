"""The requirements of a transport that carries channels, as tests to run it through; faults for any transport.

Needs pytest and pytest-asyncio: ``pip install 'netchannel[testing]'``.
"""

from __future__ import annotations

try:
    import pytest
    import pytest_asyncio as _  # noqa: F401 - what the suite's modules need
except ImportError as error:
    raise ImportError(
        "netchannel.testing needs pytest and pytest-asyncio: pip install 'netchannel[testing]'"
    ) from error

pytest.register_assert_rewrite(
    *(
        f"{__name__}.{module}"
        for module in (
            "backpressure",
            "calls",
            "deadlines",
            "delivery",
            "ends",
            "establishment",
            "outages",
            "raw_connections",
            "replay",
            "staged_groups",
            "suite",
            "upstream",
        )
    )
)

from .conformance import ChannelConformance  # noqa: E402 - only now are its asserts explained when they fail
from .faults import FaultyTransport  # noqa: E402

__all__ = ["ChannelConformance", "FaultyTransport"]
