"""Mistakes in the file of a source are told with their places, and with what to write instead."""

from __future__ import annotations

import pytest

from nebuli.ingestion.definition import parse_definition
from nebuli.ingestion.errors import DefinitionInvalid

FILE = """\
name: sales
from: {type: File, path: in.jsonl}
format: JSON
envelope: {type: upsert, key: [shop]}
schema:
- {name: shop, type: string}
- {name: amount, type: int64}
"""
QUOTES = "; YAML reads yes, no, on and off as true and false: put the value in quotes, as in 'yes'"


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("name: sales", "name: yes", f"1:7: expected a string as name, got true{QUOTES}"),
        ("name: amount", "name: No", f"7:10: expected a string as name, got false{QUOTES}"),
        ("key: [shop]", "key: [on]", f"4:32: expected a string, got true{QUOTES}"),
        ("name: amount", "name: 7", "7:10: expected a string as name, got 7; put the value in quotes"),
        ("format: JSON", "raw: maybe", "3:6: expected true or false as raw, got 'maybe'"),
        ("format: JSON", "format: JSON\nformat: CSV", "4:1: duplicate key 'format'; give each once"),
        ("type: int64", "type: int64, name: b", "7:31: duplicate key 'name'; give each once"),
        ("name: amount", "name: shop", "7:10: column 'shop' is in the schema twice; expected each name once"),
        ("name: amount", "name: _time", "7:10: a column cannot be named _time, which the source adds itself"),
        ("key: [shop]", "key: [amount, shop, amount]", "4:46: the key has column 'amount' twice; expected"),
        (
            "key: [shop]",
            "key: [shop, id]",
            "4:38: the key has the unknown column 'id'; expected one of shop, amount",
        ),
        ("File", "Parquet", "3:9: messages of Parquet have columns already; expected no 'format'"),
        ("format: JSON", "", "2:7: messages of File are bytes; expected a format: CSV, JSON, Avro or Arrow"),
        (
            "format: JSON",
            "format: Arrow",
            "3:9: a line of a file cannot contain an Arrow stream; expected CSV, JSON or Avro",
        ),
        ("format: JSON", "format: JSON\nkeep: 1 week", "4:7: '1 week' is not a length of time"),
    ],
)
def test_a_mistake_is_told_where_it_is(old: str, new: str, said: str) -> None:
    assert FILE.count(old) == 1
    with pytest.raises(DefinitionInvalid) as caught:
        parse_definition(FILE.replace(old, new), "/in/sales.yaml")
    assert any(line.startswith(f"/in/sales.yaml:{said}") for line in str(caught.value).splitlines())


def test_what_holds_up_is_said_or_follows_from_transactions() -> None:
    """A transaction without one of its messages would never be complete."""
    plain = FILE.replace("{type: upsert, key: [shop]}", "append")
    whole = FILE.replace("type: upsert, key: [shop]", "type: debezium, key: [shop], transactions: complete")
    assert parse_definition(plain).collects_errors
    assert not parse_definition(f"{plain}on_error: wait\n").collects_errors
    assert not parse_definition(whole).collects_errors
    with pytest.raises(
        DefinitionInvalid, match="would never be complete; expected on_error: wait, or no 'on_error'"
    ):
        parse_definition(f"{whole}on_error: collect\n")


def test_an_empty_file_is_told_to_hold_a_source() -> None:
    with pytest.raises(DefinitionInvalid) as caught:
        parse_definition("# later\n", "sales.yaml")
    assert str(caught.value) == "sales.yaml:1:1: the file is empty; expected a source"
