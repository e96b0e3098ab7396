"""What stands for a place: paths, URLs, and what is neither; passwords are never repeated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from nebuli.store.errors import ExtraMissing, StoreUrlInvalid
from nebuli.store.store_url import StoreUrl, store_place

END = "schema=flights&blobs=s3://a-bucket/a/prefix"


@pytest.mark.parametrize("text", ["state", "/var/lib/state", "a:b", "postgresql:/x", "./s3:x"])
def test_what_has_no_scheme_is_a_path(text: str) -> None:
    assert store_place(text) == Path(text)


@pytest.mark.parametrize(
    ("text", "server"),
    [
        (f"postgresql://host/db?{END}", "postgresql://host/db"),
        (f"postgres://me@host:5433/db?{END}", "postgres://me@host:5433/db"),
        (
            f"postgresql://me:p%40ss+w%2F@h1:1,h2:2/db?sslmode=require&{END}",
            "postgresql://me:p%40ss+w%2F@h1:1,h2:2/db?sslmode=require",
        ),
        (f"postgresql:///db?host=/run/postgresql&{END}", "postgresql:///db?host=/run/postgresql"),
        (
            "postgresql://host/db?schema=flights&blobs=s3%3A%2F%2Fa-bucket%2Fa%2Fprefix%2F",
            "postgresql://host/db",
        ),
    ],
)
def test_a_url_names_a_database_a_schema_and_a_bucket(text: str, server: str) -> None:
    assert store_place(text) == StoreUrl(server, "flights", "s3://a-bucket/a/prefix")


def test_a_url_is_shown_without_its_password() -> None:
    url = store_place(f"postgresql://me:hidden@host/db?password=hidden&sslpassword=hidden&{END}")
    shown = f"postgresql://me@host/db?{END}"
    assert (str(url), repr(url), f"{[url]}") == (shown, shown, f"[{shown}]")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", r"the place of a store is an empty string: give a folder by its path, or postgresql:"),
        (
            "mysql://me:hidden@host/db",
            r"mysql:// cannot hold a store: give a folder by its path, or postgresql:",
        ),
        (
            f"postgresql://host/db?{END}".replace("schema", "scheme"),
            r"neither nebuli nor libpq knows \(scheme\)",
        ),
        (
            "postgresql://me:hidden@host/db?blobs=s3://b",
            r"postgresql://me@host/db names no schema: add schema=NAME",
        ),
        (
            "postgresql://me:hidden@host/db?schema=a",
            r"me@host/db names no blobs: add blobs=s3://BUCKET/PREFIX",
        ),
        (
            "postgresql://host/db?schema=a-b&blobs=s3://b",
            r"schema=a-b is not valid: use at most 40 letters, digits",
        ),
        (f"postgresql://host/db?schema={'a' * 41}&blobs=s3://b", r"at most 40 letters"),
        ("postgresql://host/db?schema=a&blobs=gs://b", r"blobs= must be s3://BUCKET/PREFIX"),
        ("postgresql://host/db?schema=a&blobs=s3://key:hidden@b", r"PGPASSWORD"),
        (f"postgresql://me:hid@den@host/db?{END}", r"misplaced .* write # as %23, \? as %3F, @ as %40"),
        (f"postgresql://me:hid/den@host/db?{END}", r"PGPASSWORD or ~/\.pgpass"),
        (f"postgresql://me:hid?den@host/db?{END}", r"PGPASSWORD"),
        (f"postgresql://me:hid#den@host/db?{END}", r"PGPASSWORD"),
        (
            f"postgresql://me:hid%den@host/db?{END}",
            r"cannot be read by libpq: it has to be like postgresql://USER@HOST",
        ),
        (f"postgresql://host:5432a/db?{END}", r"cannot be read by libpq"),
    ],
)
def test_what_is_neither_is_refused_and_no_password_is_repeated(text: str, why: str) -> None:
    with pytest.raises(StoreUrlInvalid, match=why) as raised:
        store_place(text)
    assert "hid" not in str(raised.value)
    assert raised.value.__cause__ is None


def test_what_is_not_installed_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nebuli.store.store_url.find_spec", lambda name: None if name == "obstore" else name)
    with pytest.raises(ExtraMissing, match=r"needs obstore, .*: pip install 'nebuli\[postgres,objects\]'"):
        store_place(f"postgresql://host/db?{END}")


def test_a_place_below_another_has_a_schema_that_no_other_has() -> None:
    """PostgreSQL keeps 63 bytes of a name, and says nothing of those that it forgets."""
    url = StoreUrl("postgresql://host/db", "a" * 40, "s3://b")
    assert (url / "member-0").schema == "a" * 40 + "/member-0"
    names = [f"{'x' * length}{end}" for length in (10, 20, 30, 100) for end in ("a", "b", 'a"', "ä", "a%2F")]
    below = [(url / name).schema for name in names]
    assert len({*below}) == len(names)
    assert all(len(each.encode()) <= 63 and '"' not in each and "%" not in each for each in below)
    assert (url / names[0]).blobs == url.blobs


@pytest.mark.processes
def test_folders_need_nothing_that_is_not_there(tmp_path: Path) -> None:
    """Who has neither of the extras has stores in folders."""
    program = """
import asyncio, sys
sys.modules["psycopg"] = sys.modules["obstore"] = None
from nebuli.store import Store

async def main():
    async with Store.at(sys.argv[1]) as store:
        print(await store.shards())

asyncio.run(main())
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, encoding="utf-8", check=True).stdout == "[]\n"
