"""``nebuli certs``, as a process of its own, and with what it makes."""

from __future__ import annotations

import asyncio
import datetime
import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

import netchannel
from nebuli.cli import nebuli
from netchannel import ReceiverServer, SenderServer, Tls

pytestmark = pytest.mark.processes


def dev(
    *arguments: str, cwd: Path, environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "nebuli", "certs", "dev", *arguments]
    env = {**os.environ, "PYTHONPATH": str(Path.cwd()), **(environment or {})}
    return subprocess.run(command, cwd=cwd, capture_output=True, encoding="utf-8", check=False, env=env)


def printed(output: str, cwd: Path) -> list[Tls]:
    """The settings that were printed, to be used from anywhere."""
    found = [re.fullmatch(r'Tls\("(.*)", "(.*)", "(.*)"\)', line) for line in output.splitlines()]
    return [Tls(*(cwd / path for path in match.groups())) for match in found if match]


async def carry(receiving: Tls, sending: Tls, host: str) -> bytes:
    async with ReceiverServer(f"{host}:0", tls=receiving) as receiver, SenderServer(tls=sending) as sender:
        inbox = receiver.register_channel("c", codec="bytes")
        outbox = sender.register_channel("c", to=receiver.address, codec="bytes")
        await outbox.send(b"x")
        await outbox.close()
        return bytes(await inbox.recv())


def test_one_certificate_for_this_machine(tmp_path: Path):
    """CH-TLS-1: a channel runs with what it prints; keys are their owner's alone; it says how long they are good."""
    ended = dev(cwd=tmp_path)
    assert ended.returncode == 0, ended.stderr
    (tls,) = printed(ended.stdout, tmp_path)
    for host in ("localhost", "127.0.0.1", "[::1]"):
        assert asyncio.run(carry(tls, tls, host)) == b"x"
    assert sorted(file.name for file in tmp_path.joinpath("certs").iterdir()) == [
        *("authority.pem", "localhost.key", "localhost.pem")
    ]
    assert stat.S_IMODE(Path(tls.key).stat().st_mode) == 0o600
    ends = x509.load_pem_x509_certificate(Path(tls.certificate).read_bytes()).not_valid_after_utc
    assert ended.stderr == f"for development only; valid until {ends:%Y-%m-%d %H:%M} UTC\n"
    left = ends - datetime.datetime.now(datetime.UTC)
    assert datetime.timedelta(days=29) < left <= datetime.timedelta(days=30)


def test_a_certificate_for_each_host(tmp_path: Path):
    """Each is for its own host, and all are of one authority."""
    ended = dev(
        "--directory", "a/b", "--host", "127.0.0.1", "--host", "edge.example.org", "--days", "2", cwd=tmp_path
    )
    assert ended.returncode == 0, ended.stderr
    local, edge = printed(ended.stdout, tmp_path)
    assert asyncio.run(carry(local, edge, "127.0.0.1")) == b"x"
    with pytest.raises(netchannel.HandshakeError, match=r"is for edge\.example\.org, not for 127\.0\.0\.1"):
        asyncio.run(carry(edge, local, "127.0.0.1"))


def test_files_that_are_there_are_kept_unless_told_otherwise(tmp_path: Path):
    """Nothing is written if anything would be lost."""
    assert dev(cwd=tmp_path).returncode == 0
    key = tmp_path / "certs" / "localhost.key"
    before = key.read_bytes()
    (tmp_path / "certs" / "localhost.pem").unlink()
    again = dev(cwd=tmp_path)
    assert (again.returncode, again.stdout) == (2, "")
    assert "certs/authority.pem, certs/localhost.key " in again.stderr
    assert "--force" in again.stderr
    assert key.read_bytes() == before
    assert not (tmp_path / "certs" / "localhost.pem").exists()
    key.chmod(0o644)
    forced = dev("--force", cwd=tmp_path)
    assert forced.returncode == 0
    (tls,) = printed(forced.stdout, tmp_path)
    assert asyncio.run(carry(tls, tls, "127.0.0.1")) == b"x"
    assert key.read_bytes() != before
    assert stat.S_IMODE(key.stat().st_mode) == 0o600


@pytest.mark.parametrize("host", ["", "a/b", "../x", "a b", "-x", "*.example.org", "host:1"])
def test_what_is_no_host_is_refused(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(nebuli, ["certs", "dev", "--host", host])
    assert ended.exit_code == 2
    assert f"'--host': invalid host {host!r}" in ended.output
    assert list(tmp_path.iterdir()) == []


def test_what_it_needs_is_named(tmp_path: Path):
    """Where the package that makes certificates is not installed."""
    (tmp_path / "cryptography.py").write_text("raise ImportError('no such package')", "utf-8")
    ended = dev(cwd=tmp_path, environment={"PYTHONPATH": f"{tmp_path}:{Path.cwd()}"})
    assert ended.returncode == 2
    assert "pip install 'nebuli[certs]'" in ended.stderr
