"""Signals: the first is remembered, the second ends the process at once. A notice of maintenance or
preemption, from a metadata server on this machine, counts as one.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from mhsh.cluster import signals
from mhsh.cluster.signals import HOST_VARIABLE, StopSignals, is_leave_announced, maintenance_watch
from tests.conftest import ROOT

PREFIX = "/computeMetadata/v1/instance/"
PROGRAM = """
import os, signal
from mhsh.cluster.signals import StopSignals
number = signal.Signals({number})
before = signal.getsignal(number)
with StopSignals():
    pass
assert signal.getsignal(number) is before
with StopSignals() as stop:
    os.kill(os.getpid(), number)
    print("first:", stop.signal, flush=True)
    os.kill(os.getpid(), number)
    print("still here", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_the_process_at_once(number):
    program = PROGRAM.format(number=int(number))
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.stdout == f"first: {int(number)}\n"
    assert done.returncode == -number


def test_in_a_thread_none_is_caught() -> None:
    """Python refuses it; training goes on without."""
    before, inside = signal.getsignal(signal.SIGINT), []

    def train() -> None:
        with StopSignals() as stop:
            inside.append((stop.signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
    assert inside == [(None, before)] and signal.getsignal(signal.SIGINT) is before


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


@pytest.mark.parametrize(("path", "value"), [("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE"), ("preempted", "TRUE")])
def test_an_announcement_asks_the_run_to_stop(server, monkeypatch, path, value):
    monkeypatch.setattr(signals, "POLL_SECONDS", 0.01)
    with StopSignals() as stop, maintenance_watch(stop):
        time.sleep(0.2)
        assert stop.signal is None
        server.values[path] = value
        deadline = time.monotonic() + 60
        while stop.signal is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert stop.signal == signal.SIGTERM


def test_without_a_server_no_notice_is_heard(monkeypatch):
    monkeypatch.setenv(HOST_VARIABLE, "127.0.0.1:9")
    assert not is_leave_announced()
    monkeypatch.delenv(HOST_VARIABLE)
    before = threading.active_count()
    with StopSignals() as stop, maintenance_watch(stop):
        assert threading.active_count() == before
    assert stop.signal is None
