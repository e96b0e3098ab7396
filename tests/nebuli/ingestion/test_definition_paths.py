"""Relative paths in a definition start at the folder of its file."""

from __future__ import annotations

from pathlib import Path

import pytest

from nebuli.ingestion.definition import Definition, ParquetOrigin, parse_definition

COLUMNS = "schema: [{name: id, type: int64}]"


def read(*lines: str) -> Definition:
    return parse_definition("\n".join(["name: sales", *lines, COLUMNS])).below(Path("/etc/sales"))


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("in/*.csv", "/etc/sales/in/*.csv"),
        ("../sales.csv", "/etc/sales/../sales.csv"),
        ("/var/sales.csv", "/var/sales.csv"),
    ],
)
def test_paths_of_files(given: str, meant: str) -> None:
    lines = read(f"from: {{type: File, path: {given}}}", "format: CSV")
    parquet = read(f"from: {{type: Parquet, path: {given}}}")
    assert [each.to_json().count(f'"{meant}"') for each in (lines, parquet)] == [1, 1]
    assert lines.below(Path("/elsewhere")) == lines


def test_those_of_a_file_begin_at_its_folder_wherever_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = f"name: sales\nfrom: {{type: Parquet, path: in/*.parquet}}\n{COLUMNS}"
    for file in ("../sales.yaml", str(tmp_path / "here" / ".." / "sales.yaml")):
        found = parse_definition(text, file).origin
        assert isinstance(found, ParquetOrigin)
        assert Path(found.path).resolve() == tmp_path / "in" / "*.parquet"
        assert Path(found.path).is_absolute()
    found = parse_definition(text).origin
    assert isinstance(found, ParquetOrigin)
    assert found.path == "in/*.parquet"


def test_paths_of_certificates_and_secrets_also_of_metadata() -> None:
    channel = (
        "{type: Channel, address: 'h:1', channel: c, consumer: k, secret: {file: s},"
        " tls: {certificate: c.pem, key: /k.pem, authority: a.pem, server_name: h}}"
    )
    found = read(
        f"from: {channel}",
        "format: JSON",
        f"envelope: {{type: debezium, key: [id], transactions: complete, metadata: {channel}}}",
    )
    meant = {
        "type": "Channel",
        "address": "h:1",
        "channel": "c",
        "consumer": "k",
        "secret": {"file": "/etc/sales/s"},
        "tls": {
            "certificate": "/etc/sales/c.pem",
            "key": "/k.pem",
            "authority": "/etc/sales/a.pem",
            "server_name": "h",
        },
    }
    said = found.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    assert said["from"] == said["envelope"]["metadata"] == meant


def test_a_secret_of_the_environment_stays() -> None:
    origin = "from: {type: Channel, address: 'h:1', channel: c, consumer: k, secret: {env: SECRET}}"
    assert read(origin) == parse_definition("\n".join(["name: sales", origin, COLUMNS]))
