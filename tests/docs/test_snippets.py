from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import sessions
from tests.docs.markdown import PAGES, ROOT, blocks, name_of
from tests.support.environments import environment
from tests.support.object_store import object_store
from tests.support.postgres import server

pytestmark = pytest.mark.processes

# Run where Spark is set up for it, by its own tests.
_ELSEWHERE = {
    f"docs/how-to/{page}.md"
    for page in (
        "members-in-spark",
        "ship-an-environment",
        "spark",
        "spark-collections",
        "spark-streaming",
        "spark-streams-and-circuits",
    )
} | {"docs/tutorial/first-source.md"}
_WITH_STEPS = [page for page in PAGES if name_of(page) not in _ELSEWHERE and sessions.steps_of(blocks(page))]
_INSTALLING = {"docs/how-to/write-a-connector.md"}  # what is no other test's to find
_WITH_SERVERS = {"docs/how-to/state-in-postgres.md"}
_LANGUAGES = {
    "python",
    "console",
    "text",
    "mermaid",
    "sh",
    "yaml",
    "json",
    "csv",
    "pyi",
    "bnf",
    "toml",
    "sql",
}


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of PostgreSQL and of objects, which the environment has the way to."""
    with server() as postgres, object_store() as objects:
        objects.bucket("states")
        for name, value in (postgres.environment | objects.environment).items():
            monkeypatch.setenv(name, value)
        yield


@pytest.mark.story
@pytest.mark.parametrize("page", _WITH_STEPS, ids=name_of)
def test_what_a_page_shows_is_what_happens(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if name_of(page) in _WITH_SERVERS:
        request.getfixturevalue("servers")
    own = [environment(tmp_path / ".environment")] if name_of(page) in _INSTALLING else []
    outcomes = sessions.run(sessions.steps_of(blocks(page)), tmp_path, *own)
    for index, (step, output, exit_code) in enumerate((o.step, o.output, o.exit_code) for o in outcomes):
        where = f"{name_of(page)}:{step.line}: $ {step.command}\n{output}"
        is_shown = index + 1 < len(outcomes) and outcomes[index + 1].step.command == "echo $?"
        assert exit_code == 0 or is_shown, f"exit code {exit_code} of {where}"
        if step.expected is not None:
            assert sessions.agrees(step.expected, output), f"{where}\nthe page shows:\n{step.expected}"


def test_every_block_has_a_language_that_is_known_here() -> None:
    """So that no snippet escapes the tests by the name of its language."""
    unknown = {name_of(page): {block.language for block in blocks(page)} - _LANGUAGES for page in PAGES}
    assert not any(unknown.values()), unknown


def test_there_is_something_to_run_on_every_page_of_tutorials_and_how_tos() -> None:
    run = {name_of(page) for page in _WITH_STEPS}
    expected = {
        name_of(page) for folder in ("tutorial", "how-to") for page in (ROOT / "docs" / folder).glob("*.md")
    }
    assert expected - _ELSEWHERE <= run
    assert "README.md" in run


def test_commands_of_the_readme_and_for_contributors_are_targets_of_the_makefile() -> None:
    text = "".join((ROOT / page).read_text("utf-8") for page in ("README.md", "CONTRIBUTING.md"))
    named = set(re.findall(r"`make ([\w-]+)[^`]*`|^\$ make ([\w-]+)", text, re.MULTILINE))
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))
    assert {"demo", "test"} <= {first or second for first, second in named} <= targets


def test_the_readme_shows_the_api_in_about_twelve_lines() -> None:
    (script,) = [block for block in blocks(ROOT / "README.md") if block.language == "python"]
    assert len([line for line in script.text.splitlines() if line.strip()]) <= 12


@pytest.mark.parametrize(
    ("expected", "output", "same"),
    [
        ("a\n", "a\n", True),
        ("a\n", "b\n", False),
        ("a\n", "a\nb\n", False),
        ("a\n...\n", "a\nb\nc\n", True),
        ("...\nc\n", "a\nb\nc\n", True),
        ("...\nd\n", "a\nb\nc\n", False),
        ("a ... c\n", "a b c\n", True),
        ("   1.6 s  ready\n", "  12.3 s  ready\n", True),
        ("   1.6 s  ready\n", "   1.6 s  done\n", False),
        ("", "something\n", False),
        ("", "channel c to 127.0.0.1:1: close() waits for 3 messages, from number 0 on\n", True),
    ],
)
def test_outputs_are_compared_line_by_line(expected: str, output: str, same: bool) -> None:
    assert sessions.agrees(expected, output) is same
