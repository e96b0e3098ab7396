"""What no command can do anything with, of all commands' options and arguments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from nebuli.cli import nebuli
from nebuli.cli.bounds import size_of


def parameters(group: click.Group = nebuli) -> Iterator[tuple[str, click.Parameter]]:
    """Of all commands, with the names of both."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from parameters(command)
            continue
        for each in command.params:
            yield f"{name} {each.name}", each


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_no_number_may_be_none(value: str) -> None:
    numbers = [each for each in parameters() if isinstance(each[1].type, click.types.FloatParamType)]
    assert {"run checkpoint_s", "start checkpoint_s", "watch patience", "top interval"} <= dict(
        numbers
    ).keys()
    for name, each in numbers:
        with pytest.raises(click.BadParameter, match=f"{value} is not "):
            pytest.fail(f"{name} takes {each.type.convert(value, each, None)}")


def test_no_path_may_be_empty() -> None:
    paths = [each for each in parameters() if isinstance(each[1].type, click.Path)]
    expected = {"run state", "run topology", "worker state", "worker secret_file", "dev directory"}
    assert expected <= dict(paths).keys()
    for name, each in paths:
        with pytest.raises(click.BadParameter, match="expected a path"):
            pytest.fail(f"{name} takes {each.type.convert('', each, None)!r}")


@pytest.mark.parametrize("command", ["status", "stop", "start", "unregister", "watch", "checkpoint", "logs"])
def test_an_empty_id_is_not_the_only_query_that_there_is(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every id begins so, and a script whose variable is empty would stop it."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    queries = tmp_path / "nebuli" / "queries"
    queries.mkdir(parents=True)
    (queries / "0123456789ab.json").write_text("this is read if it is meant", "utf-8")
    ended = CliRunner().invoke(nebuli, [command, ""])
    assert ended.exit_code == 1
    assert "expected a query's id" in ended.output


SIZES = {
    "500MB": 500_000_000,
    "2GiB": 2_147_483_648,
    "64 kib": 65_536,
    "1tb": 1_000_000_000_000,
    "1073741824": 1_073_741_824,
}


@pytest.mark.parametrize("given", SIZES)
def test_a_size_has_the_units_that_people_know(given: str) -> None:
    assert size_of(given) == SIZES[given]


@pytest.mark.parametrize("given", ["2GX", "GiB", "-1", "1.5GiB", ""])
@pytest.mark.parametrize("option", ["--max-state-bytes", "--keep-output"])
def test_what_is_no_size_is_said_with_what_is(option: str, given: str, tmp_path: Path) -> None:
    """By any option that takes one; a bound of nothing is not a bound."""
    (tmp_path / "file").touch()
    files = [str(tmp_path / "file")] * 2
    ended = CliRunner().invoke(nebuli, ["run", option, given, *files])
    assert ended.exit_code == 2
    assert f"'{option}': invalid size {given!r}" in ended.output
    ended = CliRunner().invoke(nebuli, ["run", "--max-state-bytes", "0kB", *files])
    assert "'--max-state-bytes': 0kB " in ended.output
