"""The Dockerfile: its form, and that what it copies is there. No test builds it: that takes an engine."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT

DOCKERFILE = ROOT / "Dockerfile"
HADOLINT = Path(sys.executable).with_name("hadolint")


def linted(text: str) -> list[str]:
    """The rules of hadolint that a Dockerfile breaks."""
    ended = subprocess.run(
        [HADOLINT, "--no-color", "-"], input=text, capture_output=True, encoding="utf-8", check=False
    )
    return re.findall(r"^-:\d+ (\S+)", ended.stdout, re.MULTILINE)


def instructions(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", "", text)
    return [
        (word, rest)
        for word, _, rest in (line.partition(" ") for line in joined.splitlines())
        if word.isupper()
    ]


@pytest.mark.processes(2)
def test_the_linter_finds_nothing() -> None:
    text = DOCKERFILE.read_text("utf-8")
    assert linted(text) == []
    assert linted(text.replace(":3.13-slim-trixie", "")) == ["DL3006", "DL3006"], "a base without a tag"


def test_it_copies_what_is_there_and_no_more_is_sent_to_the_engine() -> None:
    found = instructions(DOCKERFILE.read_text("utf-8"))
    copied = {
        name for word, rest in found if word == "COPY" and "--from" not in rest for name in rest.split()[:-1]
    }
    assert all((ROOT / name).exists() for name in copied)
    ignored = (ROOT / ".dockerignore").read_text("utf-8").splitlines()
    assert {line.removeprefix("!") for line in ignored if line.startswith("!")} == copied
    assert "*" in ignored


def test_it_runs_as_a_user_other_than_root_by_one_pinned_base() -> None:
    found = instructions(DOCKERFILE.read_text("utf-8"))
    users = [rest for word, rest in found if word == "USER"]
    assert users == ["10001"]
    assert not [word for word, _ in found[found.index(("USER", "10001")) :] if word == "RUN"]
    bases = {rest.split()[0] for word, rest in found if word == "FROM"}
    assert len(bases) == 1
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", bases.pop())
