"""A registry of schemas for tests, as Confluent's answers: over HTTP, in a thread, with faults on demand."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Registry:
    """Answers by path; ``status`` is that of all answers, and ``asked`` the paths that were asked for."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.status = 200
        self.body: bytes | None = None
        self.asked: list[str] = []
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.url = ""

    def add(self, number: int, schema: Any, **more: Any) -> None:
        self.answers[f"/schemas/ids/{number}"] = {"schema": json.dumps(schema), **more}

    def refer(self, subject: str, version: int, schema: Any, **more: Any) -> None:
        self.answers[f"/subjects/{subject}/versions/{version}"] = {
            "subject": subject,
            "version": version,
            "schema": json.dumps(schema),
            **more,
        }

    def answer(self, path: str) -> tuple[int, bytes]:
        self.asked.append(path)
        self.may_answer.wait(30)
        if self.status != 200 or self.body is not None:
            return self.status, self.body or b""
        if path not in self.answers:
            return 404, b'{"error_code":40403,"message":"Schema not found"}'
        return 200, json.dumps(self.answers[path]).encode()


@contextmanager
def serving() -> Iterator[Registry]:
    registry = Registry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = registry.answer(self.path)
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = False
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    registry.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield registry
    finally:
        registry.may_answer.set()
        server.shutdown()
        thread.join()
        server.server_close()
