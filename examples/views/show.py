"""A year's flights come in, a day at a time, and a page shows their delays by origin and hour as they do.

The query runs by ``nebuli run --http``. A browser lets a page ask its own server alone, so this one passes on what the
page asks of the view.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from nebuli.blocking import Collections

HERE = Path(__file__).parent
FLIGHTS = HERE.parent / "flights" / "data" / "flights.csv.zip"
SCHEMA = pa.schema(
    [("origin", pa.string()), ("dep_delay", pa.int64()), ("time_hour", pa.timestamp("us", tz="UTC"))]
)
PATIENCE_S = 60.0
"""A watcher of a view gets an event every ten seconds: without any in this time, the view is not there."""


def main() -> None:
    """Show it until it is interrupted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--port", metavar="PORT", type=int, default=8000, help="where the page is; 0: any free port"
    )
    parser.add_argument("--pause", metavar="SECONDS", type=float, default=0.25, help="between two days")
    said = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    with tempfile.TemporaryDirectory(prefix="views-") as found:
        folder = Path(found)
        with Collections(folder / "collections") as collections:
            collections.create("flights", SCHEMA)
            with running_query(folder) as (query, views), page_at(said.port, views) as url:
                say(f"the page is at {url}, until this is ended")
                for day in days():
                    collections.insert("flights", day)
                    time.sleep(said.pause)
                say("all flights are in")
                sys.exit(query.wait())


@contextmanager
def running_query(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The query, in a folder with the collection, and the host and port at which it is asked."""
    for name in ("topology.yaml", "query.json"):
        shutil.copy(HERE / name, folder)
    options = ["--serve", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    command = [sys.executable, "-m", "nebuli", "run", *options, "topology.yaml", "query.json"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, encoding="utf-8") as query:
        try:
            assert query.stderr is not None
            for line in query.stderr:
                sys.stderr.write(line)
                if "http://" in line:
                    break
            else:
                sys.exit(query.wait())
            threading.Thread(target=sys.stderr.writelines, args=[query.stderr]).start()
            yield query, line.partition("http://")[2].partition("/")[0]
        finally:
            query.terminate()


@contextmanager
def page_at(port: int, views: str) -> Iterator[str]:
    """Serve the page, and the views that it shows; yields its URL."""

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            with suppress(ConnectionError):  # the page was left
                if self.headers["Host"] not in hosts:
                    self.send_error(421)  # a page of another site, whose name leads here
                elif self.path == "/":
                    self.answer(200, "text/html; charset=utf-8", iter([(HERE / "page.html").read_bytes()]))
                else:
                    self.pass_on()

        def pass_on(self) -> None:
            connection = HTTPConnection(views, timeout=PATIENCE_S)
            try:
                connection.request("GET", self.path, headers={"Accept": self.headers.get("Accept", "*/*")})
                answer = connection.getresponse()
                self.answer(answer.status, answer.headers["Content-Type"], iter(answer.read1, b""))
            except (OSError, HTTPException):
                self.close_connection = True
            finally:
                connection.close()

        def answer(self, status: int, kind: str, pieces: Iterator[bytes]) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with ThreadingHTTPServer(("127.0.0.1", port), Page) as server:
        hosts = [f"{name}:{server.server_port}" for name in ("127.0.0.1", "localhost")]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{hosts[0]}/"
        finally:
            server.shutdown()
            thread.join()


def days() -> Iterator[pa.Table]:
    """The flights of each day, in its order."""
    options = csv.ConvertOptions(
        column_types={field.name: field.type for field in SCHEMA},
        include_columns=SCHEMA.names,
        null_values=["NA"],
        strings_can_be_null=True,
    )
    with zipfile.ZipFile(FLIGHTS) as archive, archive.open("flights.csv") as file:
        flights = csv.read_csv(file, convert_options=options).sort_by("time_hour")
    dates = pc.floor_temporal(flights["time_hour"], unit="day")
    begin = 0
    for count in pc.value_counts(dates).field("counts").to_pylist():
        yield flights.slice(begin, count)
        begin += count


def say(text: str) -> None:
    """A line among those of the query."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main()
