"""The stories by their names, which are those of the actors that the power is cut for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from .retaining import retain_stories
from .sending import send_stories
from .staging import stage_stories

STORIES: dict[str, Callable[..., Awaitable[None]]] = {
    "send": send_stories,
    "retain": retain_stories,
    "stage": stage_stories,
}
