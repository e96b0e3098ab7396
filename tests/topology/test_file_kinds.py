"""Files of other kinds, as the programs that make them write them."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import sqlite3
import sys
import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from topology.file_kinds import FIRST_BYTES, kind_of, kind_of_bytes
from topology.mistakes import Mistake, decoded

TEXT = "a,b\n1,grüße\n"


def zipped() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("in.csv", TEXT)
    return file.getvalue()


def parquet() -> bytes:
    file = io.BytesIO()
    pyarrow.parquet.write_table(pa.table({"a": [1]}), file)
    return file.getvalue()


def arrow() -> bytes:
    file = io.BytesIO()
    table = pa.table({"a": [1]})
    with pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    return file.getvalue()


def database() -> bytes:
    with sqlite3.connect(":memory:") as opened:
        opened.execute("CREATE TABLE a (b)")
        return opened.serialize()


FILES = {
    "compressed with gzip": gzip.compress(TEXT.encode()),
    "compressed with bzip2": bz2.compress(TEXT.encode()),
    "compressed with xz": lzma.compress(TEXT.encode()),
    "compressed with Zstandard": pa.Codec("zstd").compress(TEXT.encode(), asbytes=True),
    "text in UTF-16: write": TEXT.encode("utf-16"),
    "text in UTF-32": TEXT.encode("utf-32"),
    "a zip archive": zipped(),
    "a Parquet file": parquet(),
    "an Arrow IPC file": arrow(),
    "a SQLite database": database(),
    "a program": Path(sys.executable).read_bytes()[:FIRST_BYTES],
}


@pytest.mark.parametrize("kind", FILES)
def test_a_file_is_named_by_its_first_bytes(kind: str) -> None:
    found = kind_of(FILES[kind][:FIRST_BYTES])
    assert found is not None
    assert found.startswith(f"it is {kind}")
    assert kind_of_bytes(FILES[kind]) == found


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ("a,b\n1,x\n".encode("utf-16-le"), "it is text in UTF-16: write it in UTF-8"),
        ("a,b\n1,x\n".encode("utf-16-be"), "it is text in UTF-16: write it in UTF-8"),
        (b"<!DOCTYPE html>\n<html>", "it is a page of a web site: download the data itself"),
        (b"\x01\x00\x05abc\xff", "it is binary data, not text"),
        (TEXT.encode("latin-1"), None),
        (TEXT.encode(), None),
        (b"", None),
    ],
)
def test_less_tells_what_a_file_is_that_is_known_not_to_be_as_expected(data: bytes, kind: str | None) -> None:
    assert kind_of_bytes(data) == kind
    assert kind_of(data) is None


@pytest.mark.parametrize("kind", [each for each in FILES if not each.startswith("a ")])
def test_a_topology_or_query_that_is_no_text_is_named(kind: str) -> None:
    assert str(decoded(FILES[kind], "t.yaml")).startswith(f"t.yaml: the file is not text: it is {kind}")


def test_text_in_another_encoding_is_told_with_its_place_and_what_to_do() -> None:
    found = decoded(TEXT.encode("latin-1"), "t.yaml")
    assert str(found) == "t.yaml:2:5: not UTF-8: byte 0xfc; save the file in UTF-8"


def test_a_mistake_shows_the_beginning_of_a_long_name() -> None:
    shown = str(Mistake(f"unknown sink '{'x' * 100_000}'; expected out", "q.json", 1, 2))
    assert shown == f"q.json:1:2: unknown sink '{'x' * 79}... expected out"


def test_a_mistake_shows_no_control_character() -> None:
    assert (
        str(Mistake("'a\x00\x1b[31m\x9b' is not a name", "q.json"))
        == "q.json: 'a\\x00\\x1b[31m\\x9b' is not a name"
    )
