"""A live report on the loopback interface, computed again whenever a file of its runs changes."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from etils import epath

from mhsh.errors import Unavailable, UserError
from mhsh.report.html import to_html
from mhsh.report.report import Report
from mhsh.storage.files import absolute
from mhsh.storage.questions import file_status, is_dir, paths_in
from mhsh.verdict.runs import find_runs

LOOPBACK = "127.0.0.1"
REST = 4.0  # times the last computation, before the next one: watching takes at most a fifth of a core
# Another site may let its name resolve to this address; its requests carry that name. Any port,
# because it may be forwarded.
_OWN_HOST = re.compile(r"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?", re.IGNORECASE)


class LiveReport:
    """The newest report on run folders that may still change. Safe to use from several threads."""

    def __init__(self, folders: Sequence[str | os.PathLike[str]], compute: Callable[[], Report], rest: float = REST) -> None:
        """The folders are runs, or hold runs. `compute` reads them, and raises UserError or OSError
        if it cannot.
        """
        self._folders = tuple(map(absolute, folders))
        self._compute = compute
        self._rest = rest
        self._lock = threading.Lock()
        self._seen: Any = None  # the files of every run, and what is refused
        self._rest_until = 0.0
        self._newest: bytes | None = None  # its page

    def newest(self) -> bytes:
        """The page of what the folders hold now, or held a moment ago if it was just computed.
        Raises UserError or OSError as `compute`.
        """
        with self._lock:
            if self._newest is not None and time.monotonic() < self._rest_until:
                return self._newest
            # Taken before reading, so that a row written meanwhile counts as a change.
            paths, refused = find_runs(self._folders)
            # In a sweep also its plan, and how cells ended that never became a run.
            sweeps = dict.fromkeys([*self._folders, *(path.parent.parent for path in paths if path.parent.name == "runs")])
            folders = (*paths, *sweeps, *(sweep / "ends" for sweep in sweeps))
            files = {str(path): _files(path) for path in folders}, refused
            if self._newest is None or files != self._seen:
                start = time.monotonic()
                self._newest, self._seen = to_html(self._compute(), live=True), files
                end = time.monotonic()
                self._rest_until = end + self._rest * (end - start)
            return self._newest


def _files(folder: epath.Path) -> tuple[tuple[str, int, Any], ...]:
    """Name, size and time of every file in a folder; empty if it does not exist (yet)."""
    if not is_dir(folder):
        return ()
    found = []
    for path in paths_in(folder):
        status = file_status(path)
        if status is not None and status.kind != stat.S_IFDIR:  # None: renamed since it was listed
            found.append((path.name, status.size, status.modified))
    return tuple(sorted(found))


class Server(ThreadingHTTPServer):
    """Serves the page and its updates to callers on this machine that use its own name."""

    daemon_threads = True

    def __init__(self, report: LiveReport, port: int) -> None:
        """Port 0 is any free one. Raises UserError where the port is not available."""
        self.report = report
        try:
            super().__init__((LOOPBACK, port), _Handler)
        except (OSError, OverflowError) as error:
            raise UserError(f"cannot listen on port {port} of {LOOPBACK} ({error}); choose another --port") from error

    @property
    def address(self) -> str:
        """The address for a browser."""
        return f"http://{LOOPBACK}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A browser may close the connection in the middle of an answer.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "mhsh"
    sys_version = ""
    timeout = 60  # seconds that an idle connection is kept

    def do_GET(self) -> None:
        server = self.server
        assert isinstance(server, Server)
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not _OWN_HOST.fullmatch(hosts[0]):
            return self._tell(HTTPStatus.MISDIRECTED_REQUEST, f"this server is called {server.address}")
        if self.path != "/":
            return self._tell(HTTPStatus.NOT_FOUND, "the report is at /")
        try:
            page = server.report.newest()
        except (UserError, Unavailable, OSError) as error:
            return self._tell(HTTPStatus.SERVICE_UNAVAILABLE, str(error))
        tag = f'"{hashlib.sha256(page).hexdigest()}"'
        if self.headers.get("If-None-Match") == tag:
            return self._answer(HTTPStatus.NOT_MODIFIED, "text/html; charset=utf-8", b"", tag)
        return self._answer(HTTPStatus.OK, "text/html; charset=utf-8", page, tag)

    def _tell(self, status: HTTPStatus, sentence: str) -> None:
        self._answer(status, "text/plain; charset=utf-8", sentence.encode(errors="replace"))

    def _answer(self, status: HTTPStatus, kind: str, body: bytes, tag: str | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        if status is not HTTPStatus.NOT_MODIFIED:
            self.send_header("Content-Length", str(len(body)))
        if tag:
            self.send_header("ETag", tag)
        self.send_header("Cache-Control", "no-store")
        # No other page may frame this one, read it or use it as a script. A policy inside the
        # page cannot say so.
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: a line every two seconds would fill the terminal."""
