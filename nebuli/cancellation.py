"""Ends of asyncio tasks."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


async def cancelled(tasks: Sequence[asyncio.Future[Any]]) -> None:
    """Cancel tasks, and wait for their ends."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)  # what they raise was asked for where it counts
