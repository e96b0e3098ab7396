"""The process-wide faces are what the classes of asyncio make them."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import netchannel
import netchannel.aio
from netchannel.process import blocking
from tests.development import faces

FACES = [
    (face, getattr(netchannel, each.name))
    for each in faces.FACES
    for face in (getattr(netchannel.aio, each.name), getattr(blocking, f"Blocking{each.name}"))
]
TAKE_A_TIMEOUT = {blocking.BlockingChannelReader.heads, blocking.BlockingChannelReader.schema}
"""Besides, as a call of a thread cannot be cancelled."""


@pytest.mark.processes
@pytest.mark.parametrize("path", [faces.AIO, faces.BLOCKING], ids=str)
def test_the_faces_are_as_they_are_generated(path: Path) -> None:
    assert (faces.ROOT / path).read_text(encoding="utf-8") == faces.written()[path], "run make faces"


def test_faces_have_the_methods_of_asyncio_with_their_parameters() -> None:
    for face, wrapped in FACES:
        name = wrapped.__name__
        left_out = faces.INTERNAL.get(name, set()) | faces.NOT_OF_A_PROCESS.get(name, set())
        methods = {each for each in vars(wrapped) if not each.startswith("_")} - left_out
        assert methods
        for method in methods:
            there, here = getattr(wrapped, method), getattr(face, method)
            if isinstance(there, property):
                assert isinstance(here, property)
            elif here not in TAKE_A_TIMEOUT:
                assert inspect.signature(here).parameters == inspect.signature(there).parameters


def test_only_the_faces_for_coroutines_are_awaited() -> None:
    for face, wrapped in FACES:
        for method, here in vars(face).items():
            there = vars(wrapped).get(method)
            if face.__module__ != netchannel.aio.__name__:
                assert not inspect.iscoroutinefunction(here)
            elif there is not None and not method.startswith("_"):
                assert inspect.iscoroutinefunction(here) == inspect.iscoroutinefunction(there)
