"""``nebuli collection``, as processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import click
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from nebuli.blocking import Collections
from nebuli.cli.rows.file_rows import BATCH_ROWS
from nebuli.cli.rows.times import time_of
from tests.support.commands import Ended, nebuli
from tests.support.object_store import object_store
from tests.support.postgres import server
from tests.support.waiting import wait_for

pytestmark = pytest.mark.processes

SCHEMA = pa.schema([("shop", pa.string()), ("amount", pa.int64())])
COLUMNS = "shop: string, amount: int64"
Run = Callable[..., Ended]


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def run(tmp_path: Path, store: Path) -> Run:
    """Run a command on the store."""

    def ran(command: str, *arguments: str | Path) -> Ended:
        return nebuli("collection", command, "--store", store, *arguments, directory=tmp_path)

    return ran


@pytest.fixture
def sales(run: Run) -> Run:
    """The same, with a collection."""
    assert run("create", "sales", "--schema", COLUMNS, "--shards", "2").exit_code == 0
    return run


def done(ended: Ended) -> str:
    assert ended.exit_code == 0, ended.stderr
    return ended.stdout


def found(run: Run, *arguments: str | Path) -> Counter[tuple[Any, ...]]:
    return Counter(
        tuple(row.values()) for row in json.loads(done(run("read", "sales", "--json", *arguments)))
    )


def test_what_is_inserted_is_read_at_a_time(sales: Run, tmp_path: Path) -> None:
    """ST-CTL-1: made, written, read as a table, JSON, CSV and Parquet, and dropped."""
    file = tmp_path / "first.csv"
    file.write_text("amount,shop,other\n1,Aachen,x\n2,,x\n", "utf-8")
    ended = sales("insert", "sales", file)
    first = done(ended).strip()
    assert re.fullmatch(r"2 rows, all visible at 20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z\n", ended.stderr)
    pa.parquet.write_table(pa.table({"shop": ["Bonn"], "amount": [3]}), tmp_path / "second.parquet")
    second = json.loads(done(sales("insert", "sales", tmp_path / "second.parquet", "--json")))
    assert second["rows"] == 1
    assert second["time"] > int(first)
    assert found(sales) == Counter({("Aachen", 1): 1, (None, 2): 1, ("Bonn", 3): 1})
    assert found(sales, "--as-of", first) == Counter({("Aachen", 1): 1, (None, 2): 1})
    instant = ended.stderr.split()[-1]
    assert found(sales, "--as-of", instant) == found(sales, "--as-of", first)
    lines = done(sales("read", "sales", "--format", "csv", "--as-of", first)).splitlines()
    assert lines[0] == "shop,amount"
    assert sorted(lines[1:]) == [",2", "Aachen,1"]
    lines = done(sales("read", "sales", "--as-of", first)).splitlines()
    assert sorted(line.split() for line in lines[2:]) == [["2"], ["Aachen", "1"]]
    ended = sales("read", "sales", "--into", tmp_path / "all.parquet")
    assert (done(ended), ended.stderr[:7]) == ("", "3 rows ")
    assert pa.parquet.read_table(tmp_path / "all.parquet").schema.equals(SCHEMA)
    assert pa.parquet.read_table(tmp_path / "all.parquet").num_rows == 3
    done(sales("drop", "sales"))
    assert done(sales("list")) == "no collections\n"


def test_collections_are_listed_and_shown(sales: Run, store: Path) -> None:
    """ST-CTL-3: renditions with their frontiers, and holds."""
    done(sales("create", "sensors", "--schema", "at: timestamp", "--timed", "writers", "--keep", "0.5"))
    with Collections(store) as collections:
        at = collections.latest("sales")
        collections.hold("sales", "mine", at)
    listed = json.loads(done(sales("list", "--json")))
    assert [(each["name"], each["active"]) for each in listed] == [("sales", "r1"), ("sensors", "r1")]
    assert done(sales("list")).splitlines()[2].split() == ["sales", "r1", "0", str(listed[0]["upper"])]
    shown = json.loads(done(sales("show", "sales", "--json")))
    assert shown["schema"] == [{"name": "shop", "type": "string"}, {"name": "amount", "type": "int64"}]
    assert (shown["timed"], shown["history_s"], shown["active"]) == ("store", 600.0, "r1")
    (rendition,) = shown["renditions"]
    assert rendition["shards"] == 2
    assert rendition["upper"] == listed[0]["upper"]
    assert [(each["name"], each["time"]) for each in shown["holds"]] == [("history", 0), ("mine", at)]
    shown_to_people = done(sales("show", "sensors"))
    assert shown_to_people.startswith("collection sensors (at: timestamp)\n")
    assert "times by its writers, history 0.5 s" in shown_to_people


def test_a_large_file_is_inserted_once_however_often(sales: Run, tmp_path: Path) -> None:
    """Also where whoever did it first came half of the way."""
    rows = 3 * BATCH_ROWS + 7
    table = pa.table({"shop": ["x"] * rows, "amount": range(rows)})
    whole, half = tmp_path / "whole.csv", tmp_path / "half.csv"
    pa.csv.write_csv(table, whole)
    pa.csv.write_csv(table.slice(0, 2 * BATCH_ROWS), half)
    done(sales("insert", "sales", half, "--producer", "p"))
    ended = sales("insert", "sales", whole, "--producer", "p")
    at = done(ended)
    assert ended.stderr.startswith("100,007 rows inserted, the last at ")
    assert "; 200,000 rows skipped, because producer p had inserted batches 1 to 2 before: " in ended.stderr
    ended = sales("insert", "sales", whole, "--producer", "p")
    assert done(ended) == at
    assert ended.stderr.startswith(
        "0 rows inserted; 300,007 rows skipped, because producer p had inserted batches 1 to 4 "
    )
    done(sales("read", "sales", "--into", tmp_path / "all.parquet"))
    found = pa.parquet.read_table(tmp_path / "all.parquet")
    assert sorted(found["amount"].to_pylist()) == list(range(rows))
    ended = sales("insert", "sales", half, "--producer", "p")
    assert ended.exit_code == 2
    assert ended.error.startswith("producer p ")
    assert f" collection sales than {half} has" in ended.error


def test_another_file_of_a_known_producer_is_not_counted_as_inserted(sales: Run, tmp_path: Path) -> None:
    first, other = tmp_path / "first.csv", tmp_path / "other.csv"
    first.write_text("shop,amount\nAachen,1\n", "utf-8")
    other.write_text("shop,amount\nBonn,2\nBonn,3\n", "utf-8")
    at = done(sales("insert", "sales", first, "--producer", "p"))
    ended = sales("insert", "sales", other, "--producer", "p")
    assert done(ended) == at
    assert ended.stderr.startswith(
        "0 rows inserted; 2 rows skipped, because producer p had inserted batch 1 before, the last"
    )
    assert ended.stderr.endswith("Z: give each file its own producer\n")
    counts = json.loads(done(sales("insert", "sales", other, "--producer", "p", "--json")))
    assert counts == {"time": int(at), "rows": 0, "skipped": 2}
    assert found(sales) == Counter({("Aachen", 1): 1})


@pytest.mark.story
def test_an_insert_that_is_killed_is_done_again(sales: Run, store: Path, tmp_path: Path) -> None:
    """ST-CTL-4: whatever it had come to, all rows are there, once."""
    rows = 10 * BATCH_ROWS
    pa.csv.write_csv(pa.table({"shop": ["x"] * rows, "amount": range(rows)}), tmp_path / "a.csv")
    given = ["sales", str(tmp_path / "a.csv"), "--producer", "p", "--store", str(store)]
    process = subprocess.Popen([sys.executable, "-m", "nebuli", "collection", "insert", *given])
    with Collections(store) as collections:
        wait_for(lambda: collections.snapshot("sales").num_rows > BATCH_ROWS, "some rows")
        process.kill()
        assert process.wait(30) == -signal.SIGKILL, "it was done already: have it insert more rows"
        done(sales("insert", "sales", tmp_path / "a.csv", "--producer", "p"))
        found = collections.snapshot("sales")["amount"].to_pylist()
    assert sorted(found) == list(range(rows))


def test_standard_input_is_csv(sales: Run, store: Path) -> None:
    command = [sys.executable, "-m", "nebuli", "collection", "insert", "sales", "-", "--store", str(store)]
    for text, code, said in (
        ("shop,amount\nAachen,1\n", 0, "1 row, all visible at "),
        ("shop,amount\n", 0, "0 rows\n"),
        ("shop,amount\nAachen,x\n", 2, "Error: <stdin>, line 2, column amount: 'x' is not a valid int64\n"),
        ("shop\nAachen\n", 2, "Error: <stdin>, line 1: no column amount, which the collection has; "),
    ):
        ended = subprocess.run(
            command, input=text, capture_output=True, encoding="utf-8", check=False, timeout=60
        )
        assert ended.returncode == code
        assert ended.stderr.startswith(said)
    assert found(sales) == Counter({("Aachen", 1): 1})


def test_a_column_of_weights_is_counted(sales: Run, tmp_path: Path) -> None:
    """Wherever it stands; and what was taken away is not there any more."""
    (tmp_path / "a.csv").write_text("_weight,shop,amount\n2,Aachen,1\n1,Bonn,2\n", "utf-8")
    done(sales("insert", "sales", tmp_path / "a.csv"))
    taken = pa.table(
        {"shop": ["Aachen", "Bonn"], "_weight": pa.array([-1, -1], pa.int32()), "amount": [1, 2]}
    )
    pyarrow.parquet.write_table(taken, tmp_path / "b.parquet")
    done(sales("insert", "sales", tmp_path / "b.parquet"))
    assert found(sales) == Counter({("Aachen", 1): 1})
    (tmp_path / "c.csv").write_text("shop,amount,_weight\nAachen,1,\n", "utf-8")
    ended = sales("insert", "sales", tmp_path / "c.csv")
    assert (ended.exit_code, found(sales)) == (2, Counter({("Aachen", 1): 1}))
    assert ended.error.endswith("column _weight has nulls, 1 in 1 rows: give each row a whole number")


def test_a_time_that_does_not_come_is_said_of_the_collection(sales: Run) -> None:
    done(sales("create", "told", "--schema", COLUMNS, "--timed", "writers"))
    ended = sales("read", "told")
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert ended.error.startswith("collection told has no rows yet, and its writers assign the times: wait")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_changes_are_followed_until_it_is_interrupted(
    sales: Run, store: Path, tmp_path: Path, number: int, code: int
) -> None:
    """ST-SH-9: the snapshot, and what comes behind it, over a handover, too; it leaves no hold behind."""
    (tmp_path / "a.csv").write_text("shop,amount\nAachen,1\n", "utf-8")
    first = done(sales("insert", "sales", tmp_path / "a.csv")).strip()
    printed = tmp_path / "printed"
    arguments = ["follow", "sales", "--store", store, "--as-of", first, "--snapshot"]
    with printed.open("w", encoding="utf-8") as out:
        process = subprocess.Popen([sys.executable, "-m", "nebuli", "collection", *arguments], stdout=out)
    second = done(sales("insert", "sales", tmp_path / "a.csv")).strip()
    done(sales("rendition", "sales", "r2", "--shards", "3"))
    handover = done(sales("handover", "sales", "r2")).strip()
    expected = f"_time,shop,amount,_weight\n{first},Aachen,1,1\n{second},Aachen,1,1\n{handover},Aachen,1,-2\n"
    try:
        wait_for(lambda: printed.read_text("utf-8") == expected, "all changes")
    finally:
        process.send_signal(number)
        assert process.wait(30) == code
    shown = json.loads(done(sales("show", "sales", "--json")))
    assert shown["active"] == "r2"
    assert [(each["name"], each["begin"]) for each in shown["renditions"]][1] == ("r2", int(handover))
    assert [each["name"] for each in shown["holds"]] == ["history"]


def test_changes_as_json_are_objects_and_whoever_reads_them_may_leave(
    sales: Run, store: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("shop,amount\nAachen,1\n", "utf-8")
    at = done(sales("insert", "sales", tmp_path / "a.csv")).strip()
    read_end, write_end = os.pipe()
    command = ["collection", "follow", "sales", "--store", store, "--as-of", at, "--snapshot", "--json"]
    process = subprocess.Popen(
        [sys.executable, "-m", "nebuli", *command], stdout=write_end, stderr=subprocess.PIPE
    )
    os.close(write_end)
    with os.fdopen(read_end, encoding="utf-8") as lines:
        row = json.loads(lines.readline())
    assert row == {"_time": int(at), "shop": "Aachen", "amount": 1, "_weight": 1}
    done(sales("insert", "sales", tmp_path / "a.csv"))
    assert process.wait(30) == 1
    assert process.stderr is not None
    with process.stderr:
        assert process.stderr.read() == b""


def test_only_a_rendition_that_it_never_was_is_dropped_alone(sales: Run) -> None:
    done(sales("rendition", "sales", "r2"))
    done(sales("drop", "sales", "--rendition", "r2"))
    ended = sales("drop", "sales", "--rendition", "r1")
    assert (ended.exit_code, ended.error) == (
        2,
        "collection sales is read from rendition r1: hand over to another rendition first",
    )
    assert sales("handover", "sales", "r2").exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("read", "sale"),
            r"unknown collection sale: expected one of sales, or create it first",
        ),
        (("create", "sales", "--schema", COLUMNS), "collection sales exists already"),
        (("create", "a b", "--schema", COLUMNS), "'a b' cannot be the name of a collection"),
        (("create", "a", "--schema", "shop"), "--schema: invalid column 'shop'"),
        (("create", "a", "--schema", "n: int64,"), "--schema: invalid column ''"),
        (("create", "a", "--schema", "n: int64, n: int64"), "--schema: duplicate column n"),
        (
            ("create", "a", "--schema", "n: float65"),
            "expected one of bool, .* got 'float65' \\(did you mean 'float64'",
        ),
        (("create", "a", "--schema", COLUMNS, "--shards", "1000"), "cannot have 1000 shards: give 1 to 256"),
        (("insert", "sales", "a.txt"), "^a.txt .*.csv, .zip, .parquet"),
        (("insert", "sales", "none.csv"), "none.csv: no such file in "),
        (("read", "sales", "--as-of", "noon"), "'--as-of': invalid time 'noon'"),
        (("read", "sales", "--into", "a.txt"), "--into a.txt: .*.parquet, .csv, .jsonl, .arrow"),
        (("read", "sales", "--out", "a.csv"), "^No such option '--out'. Did you mean '--into'"),
        (("rendition", "sales", "r1"), "collection sales already has a rendition r1"),
    ],
)
def test_what_cannot_be_is_said_in_a_sentence(sales: Run, arguments: tuple[str, ...], said: str) -> None:
    ended = sales(*arguments)
    assert (ended.exit_code, ended.stdout) == (2, "")
    assert re.search(said, ended.error)


def test_a_store_is_made_by_create_alone(run: Run, store: Path) -> None:
    for arguments in (("list",), ("read", "sales"), ("drop", "sales")):
        ended = run(*arguments)
        assert ended.exit_code == 2
        assert ended.error.startswith(f"no store at {store}: ")
        assert "--store" in ended.error
    assert not store.exists()
    ended = run("create", "sales", "--schema", COLUMNS, "--store", "s3://bucket")
    assert (ended.exit_code, ended.error[:9]) == (2, "--store: ")


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("0", 0),
        ("1769853600250", 1_769_853_600_250),
        ("2026-01-31T10:00:00.250Z", 1_769_853_600_250),
        ("2026-01-31 12:00:00.250+02:00", 1_769_853_600_250),
        ("2026-01-31T10:00:00.250999", 1_769_853_600_250),
        ("2026-01-31", 1_769_817_600_000),
    ],
)
def test_times_are_milliseconds_or_dates(text: str, at: int) -> None:
    assert time_of(text) == at


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1969-12-31", "9" * 5000, str(1 << 63), "now"])
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter, match="invalid time"):
        time_of(text)


def test_a_store_by_url_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with server() as postgres, object_store() as objects:
        objects.bucket("blobs")
        for name, value in (postgres.environment | objects.environment).items():
            monkeypatch.setenv(name, value)
        store = ["--store", "postgresql://?schema=sales&blobs=s3://blobs/here"]
        (tmp_path / "a.csv").write_text("shop,amount\nAachen,1\n", "utf-8")
        for arguments in (
            ["create", "sales", "--schema", COLUMNS],
            ["insert", "sales", str(tmp_path / "a.csv")],
        ):
            done(nebuli("collection", *arguments, *store, directory=tmp_path))
        read = nebuli("collection", "read", "sales", "--format", "csv", *store, directory=tmp_path)
        assert done(read) == "shop,amount\nAachen,1\n"


# -- a reader with a name


def _follow(
    store: Path, printed: Path, *arguments: str, errors: Path | None = None
) -> subprocess.Popen[bytes]:
    with printed.open("ab") as out, nullcontext() if errors is None else errors.open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "nebuli", "collection", "follow", "sales", "--store", store, *arguments],
            stdout=out,
            stderr=said,
        )


def _inserted(collections: Collections, amount: int) -> None:
    collections.insert("sales", pa.record_batch([["Aachen"], [amount]], schema=SCHEMA))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_named_reader_goes_on_where_it_was(sales: Run, store: Path, tmp_path: Path, number: int) -> None:
    """ST-CTL-3: nothing is lost while it is away, longer than the history; after a kill its last second may repeat."""
    printed = tmp_path / "printed"

    def amounts() -> list[int]:
        return [int(line.split(",")[2]) for line in printed.read_text("utf-8").splitlines()[1:]]

    with Collections(store) as collections:
        collections.drop("sales")
        collections.create("sales", SCHEMA, keep=0)
        _inserted(collections, 0)
        for run in range(3):
            errors = tmp_path / f"errors-{run}"
            process = _follow(store, printed, "--name", "mine", "--snapshot", errors=errors)
            try:
                wait_for(lambda run=run: 3 * run in amounts(), "what came while it was away, or before")
                _inserted(collections, 3 * run + 1)
                wait_for(lambda run=run: 3 * run + 1 in amounts(), "what comes")
            finally:
                process.send_signal(number)
                assert process.wait(30) == {2: 130, 15: 143}.get(number, -number)
            assert ("--snapshot apply to the first run" in errors.read_text("utf-8")) == (run > 0)
            _inserted(collections, 3 * run + 2)
            _inserted(collections, 3 * run + 3)
            collections.move_on()
            collections.keep_house()
        found = amounts()
        if number != signal.SIGKILL:
            assert found == [0, 1, 2, 3, 4, 5, 6, 7]
        times = [line.split(",")[0] for line in printed.read_text("utf-8").splitlines()[1:]]
        first = {amount: time for time, amount in reversed(list(zip(times, found, strict=True)))}
        assert sorted(first) == [0, 1, 2, 3, 4, 5, 6, 7]
        assert all(first[amount] == time for time, amount in zip(times, found, strict=True))
        assert set(collections.describe("sales").holds) >= {"history", "follow/mine"}
    done(sales("release", "sales", "follow/mine"))
    ended = sales("release", "sales", "follow/mine")
    assert (ended.exit_code, ended.error) == (
        2,
        "collection sales has no hold follow/mine: 'nebuli collection show sales' lists all",
    )


def test_two_readers_with_one_name_are_refused(sales: Run, store: Path, tmp_path: Path) -> None:
    """Each would miss, in its next run, the rows that only the other one has printed."""
    outputs = [tmp_path / "first", tmp_path / "second"]
    with Collections(store) as collections, ExitStack() as running:
        processes = []
        for amount, printed in enumerate(outputs):
            process = _follow(store, printed, "--name", "mine", errors=printed.with_suffix(".errors"))
            running.callback(process.wait, 30)
            running.callback(process.kill)
            processes.append(process)
            wait_for(lambda: "follow/mine" in collections.describe("sales").holds, "its hold")
            _inserted(collections, amount)
        wait_for(lambda: any(each.poll() is not None for each in processes), "one is refused")
        ended = next(number for number, each in enumerate(processes) if each.poll() is not None)
        assert processes[ended].returncode == 2
    said = outputs[ended].with_suffix(".errors").read_text("utf-8")
    assert (
        "another command has moved the hold follow/mine of collection sales: give each command its own"
        in said
    )


# -- files


@pytest.mark.parametrize("ending", ["csv", "parquet", "jsonl", "arrow"])
def test_rows_go_into_files_and_come_out_of_them_as_they_were(
    sales: Run, store: Path, tmp_path: Path, ending: str
) -> None:
    rows = pa.table({"shop": ["Aachen", None, 'a "b", c\n', "Bonn"], "amount": [1, 2, None, -(1 << 63)]})
    with Collections(store) as collections:
        collections.insert("sales", rows.cast(SCHEMA))
    done(sales("create", "other", "--schema", COLUMNS))
    done(sales("read", "sales", "--into", tmp_path / f"a.{ending}"))
    done(sales("insert", "other", tmp_path / f"a.{ending}"))
    done(sales("insert", "other", tmp_path / f"a.{ending}"))
    with Collections(store) as collections:
        found = collections.snapshot("other", weighted=True)
    expected = {(*row.values(), 2) for row in rows.to_pylist()}
    assert {tuple(row.values()) for row in found.to_pylist()} == expected


def test_weights_and_mistakes_of_json_lines_and_arrow(sales: Run, tmp_path: Path) -> None:
    """A line without a weight adds its row; a mistake is named with its line, and nothing of the file is inserted."""
    (tmp_path / "a.jsonl").write_text(
        '{"shop": "Aachen", "amount": 1, "_weight": 2}\n\n{"amount": 3, "more": 0}', "utf-8"
    )
    done(sales("insert", "sales", tmp_path / "a.jsonl"))
    assert found(sales) == Counter({("Aachen", 1): 2, (None, 3): 1})
    (tmp_path / "b.jsonl").write_text('{"shop": "Bonn"}\n\n{"shop": 3}\n', "utf-8")
    ended = sales("insert", "sales", tmp_path / "b.jsonl")
    assert ended.exit_code == 2
    assert f"{tmp_path / 'b.jsonl'}, line 3: " in ended.error
    taken = pa.table({"_weight": [-2], "amount": pa.array([1], pa.int32()), "shop": ["Aachen"]})
    with pa.ipc.new_stream(str(tmp_path / "c.arrow"), taken.schema) as writer:
        writer.write_table(taken)
    done(sales("insert", "sales", tmp_path / "c.arrow"))
    assert found(sales) == Counter({(None, 3): 1})
    for data, said in ((b"", "cannot be read"), (b"ARROW1 and no more", "cannot be read")):
        (tmp_path / "d.arrow").write_bytes(data)
        ended = sales("insert", "sales", tmp_path / "d.arrow")
        assert (ended.exit_code, said in ended.error) == (2, True), ended.error
    with pa.ipc.new_file(str(tmp_path / "e.arrow"), pa.schema([("shop", pa.int8())])):
        pass
    assert (
        "no column amount, which the collection has" in sales("insert", "sales", tmp_path / "e.arrow").error
    )
    assert found(sales) == Counter({(None, 3): 1})


@pytest.mark.parametrize("form", ["jsonl", "arrow"])
def test_rows_and_changes_are_printed_for_programs(
    sales: Run, store: Path, tmp_path: Path, form: str
) -> None:
    with Collections(store) as collections:
        at = collections.insert("sales", pa.record_batch([["Aachen", "Bonn"], [1, 2]], schema=SCHEMA))
        later = collections.insert("sales", pa.record_batch([["Bonn"], [3]], schema=SCHEMA))
    command = [sys.executable, "-m", "nebuli", "collection", "read", "sales", "--store", str(store)]
    read = subprocess.run([*command, "--format", form, "--as-of", str(at)], capture_output=True, check=True)
    printed = tmp_path / "printed"
    process = _follow(
        store, printed, "--as-of", str(at), "--snapshot", "--format", "json" if form == "jsonl" else form
    )
    try:
        wait_for(
            lambda: str(later).encode() in printed.read_bytes() or _rows(printed, form) == 3, "all changes"
        )
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    rows, changes = (
        ([json.loads(line) for line in data.splitlines()])
        if form == "jsonl"
        else pa.ipc.open_stream(data).read_all().to_pylist()
        for data in (read.stdout, printed.read_bytes())
    )
    assert sorted(rows, key=str) == [{"shop": "Aachen", "amount": 1}, {"shop": "Bonn", "amount": 2}]
    expected = [(at, "Aachen", 1, 1), (at, "Bonn", 2, 1), (later, "Bonn", 3, 1)]
    assert sorted(tuple(each.values()) for each in changes) == expected


def _rows(printed: Path, form: str) -> int:
    if form != "arrow" or not printed.read_bytes():
        return 0
    reader = pa.ipc.open_stream(printed.read_bytes())
    rows = 0
    try:
        while True:
            rows += reader.read_next_batch().num_rows
    except (StopIteration, OSError, pa.ArrowInvalid):
        return rows
