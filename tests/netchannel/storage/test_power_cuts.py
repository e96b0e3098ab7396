"""What is durable is there after a loss of power: on a real file system that forgets what was not synced."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from netchannel import NetChannelError
from tests.power.kinds import STORIES
from tests.power.machine import Machine, machine
from tests.power.stories import FILES
from tests.support.sizes import some

pytestmark = [pytest.mark.processes, pytest.mark.long, pytest.mark.uvloop]

SEEDS = range(6)
"""More of them: ``make power``."""


@pytest.fixture(scope="module")
def power(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as made:
        yield made


@pytest.mark.story
@pytest.mark.parametrize("kind", STORIES)
async def test_nothing_that_was_promised_is_lost(power: Machine, kind: str) -> None:
    """CH-DUR-1, CH-DUR-3, CH-REP-1, CH-STG-4: of a sender's buffer, a kept stream, staged groups."""
    await STORIES[kind](power, [f"{kind} {seed}" for seed in some(SEEDS)])


@pytest.mark.parametrize(("kind", "lie"), [(kind, lie) for kind, lies in FILES.items() for lie in lies])
async def test_a_sync_that_does_nothing_is_noticed(power: Machine, kind: str, lie: str) -> None:
    """Each of these is needed: where the disk only says that it has synced such files, a story goes wrong."""
    with pytest.raises((AssertionError, NetChannelError)):
        await STORIES[kind](power, [f"{kind} {lie} {seed}" for seed in range(50)], (lie,))
