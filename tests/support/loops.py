"""Event loops that tests run on."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import uvloop


def new_uvloop() -> asyncio.AbstractEventLoop:
    """uvloop's, made to end with a test's time: by itself it logs what is raised at a signal, and waits on for ever."""
    loop = uvloop.new_event_loop()
    loop.set_exception_handler(_handle)
    return loop


def _handle(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    loop.default_exception_handler(context)
    if isinstance(context.get("exception"), pytest.fail.Exception):
        loop.stop()
