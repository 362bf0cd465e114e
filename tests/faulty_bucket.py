"""A proxy in front of the emulator of Google Cloud Storage, in this process, that fails the
requests that a test names.
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

# What becomes of request number k (from 0): a status, "reset", "cut" (half of the answer),
# "silent" (none, until the client gives up) or None.
Decide = Callable[[int, str, str], int | str | None]


class FaultyBucket:
    """`decide(k, method, path)` is asked before every request; it may be replaced at any time."""

    def __init__(self, behind: str) -> None:
        self.decide: Decide = lambda number, method, path: None
        self.requests: list[tuple[str, str]] = []
        self.sent: list[int] = []  # the bytes of their bodies
        self._lock = threading.Lock()
        proxy, target = self, urlsplit(behind).netloc

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                with proxy._lock:
                    number = len(proxy.requests)
                    proxy.requests.append((self.command, self.path))
                    proxy.sent.append(len(body))
                fault = proxy.decide(number, self.command, self.path)
                if fault == "silent":
                    self.connection.recv(1)
                    self.close_connection = True
                    return
                if fault == "reset":
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.connection.close()
                    self.close_connection = True
                    return
                status, headers, content = (fault, [], b"it fails") if isinstance(fault, int) else self.forward(body)
                self.send_response(status)
                for name, value in headers:
                    if name.lower() not in ("transfer-encoding", "connection", "content-length", "date", "server"):
                        self.send_header(name, value)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content[: len(content) // 2] if fault == "cut" else content)
                if fault == "cut":
                    self.close_connection = True

            def forward(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
                connection = http.client.HTTPConnection(target, timeout=60)
                kept = {name: value for name, value in self.headers.items() if name.lower() != "connection"}
                connection.request(self.command, self.path, body, kept)
                answer = connection.getresponse()
                content = answer.read()
                connection.close()
                return answer.status, answer.getheaders(), content

            do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = answer

            def log_message(self, format: str, *arguments: object) -> None:
                pass

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, request: object, client_address: object) -> None:
                pass  # a client that has gone

        self._server = Server(("127.0.0.1", 0), Handler)
        self.address = f"http://127.0.0.1:{self._server.server_port}"

    @contextlib.contextmanager
    def serving(self) -> Iterator[FaultyBucket]:
        thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
