"""The notice of maintenance or preemption, from a metadata server on this machine: heard once it
comes, and not before.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mhsh.training import maintenance
from mhsh.training.maintenance import HOST_VARIABLE, MaintenanceWatch, announced
from mhsh.training.signals import Interruption

PREFIX = "/computeMetadata/v1/instance/"


class MetadataServer(ThreadingHTTPServer):
    """Answers as Google's does: only those who send its header, only these paths."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.values = {"maintenance-event": "NONE", "preempted": "FALSE"}


class Answer(BaseHTTPRequestHandler):
    server: MetadataServer

    def do_GET(self) -> None:
        value = self.server.values.get(self.path.removeprefix(PREFIX))
        known = value is not None and self.headers["Metadata-Flavor"] == "Google"
        self.send_response(200 if known else 403)
        self.end_headers()
        if known:
            self.wfile.write(value.encode())

    def log_message(self, format: str, *args: object) -> None:
        """Silent."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[MetadataServer]:
    with MetadataServer() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        monkeypatch.setenv(HOST_VARIABLE, f"127.0.0.1:{server.server_port}")
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"),
        ("maintenance-event", "MIGRATE_ON_HOST_MAINTENANCE"),
        ("preempted", "TRUE"),
    ],
)
def test_an_announcement_is_heard(server, path, value):
    assert not announced()
    server.values[path] = value
    assert announced()


def test_no_server_is_no_announcement(monkeypatch):
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1:9")
    assert not announced()


def test_the_run_is_asked_to_stop_when_the_notice_comes(server, monkeypatch):
    monkeypatch.setattr(maintenance, "POLL_SECONDS", 0.01)
    with Interruption() as interruption, MaintenanceWatch(interruption):
        time.sleep(0.2)
        assert interruption.signal is None
        server.values["maintenance-event"] = "TERMINATE_ON_HOST_MAINTENANCE"
        deadline = time.monotonic() + 60
        while interruption.signal is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert interruption.signal == signal.SIGTERM


def test_elsewhere_nobody_is_asked(monkeypatch):
    monkeypatch.delenv(HOST_VARIABLE, raising=False)
    before = threading.active_count()
    with Interruption() as interruption, MaintenanceWatch(interruption):
        assert threading.active_count() == before
    assert interruption.signal is None
