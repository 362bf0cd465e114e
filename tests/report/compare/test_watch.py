"""Tests of the served report: a real server, whom it answers and what, when it computes, and the
page as it grows in a browser.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mhsh.errors import UserError
from mhsh.report.compare.comparison import Comparison, compare
from mhsh.report.compare.watch import CONNECTIONS, LOOPBACK, Server, Watched
from mhsh.verdict.runs import load_runs
from tests.report.browser import PROGRAM, Browser

ROOT = Path(__file__).resolve().parents[3]


class Counted:
    """Compares the folders, and counts how often."""

    def __init__(self, folders: list[Path]) -> None:
        self.folders = folders
        self.times = 0

    def __call__(self) -> Comparison:
        self.times += 1
        return compare(load_runs(self.folders))


def append(folder: Path, *steps: int, loss: float = 2.0, cut: int = 0) -> None:
    """Adds training rows; the last loses its last `cut` bytes."""
    rows = [
        {"step": step, "split": "train", "tokens": 512 * step, "flops": 1e9 * step, "seconds": 0.1 * step, "loss": loss}
        for step in steps
    ]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    with open(folder / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write(text[: len(text) - cut])


@pytest.fixture
def serve() -> Iterator[Callable[[Watched], Server]]:
    servers: list[tuple[Server, threading.Thread]] = []

    def start(watched: Watched) -> Server:
        server = Server(watched, 0)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        servers.append((server, thread))
        return server

    yield start
    for server, thread in servers:
        server.shutdown()
        thread.join()
        server.server_close()


def ask(
    server: Server, path: str = "/update", method: str = "GET", host: str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"{LOOPBACK}:{server.server_port}", **headers})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def drawn(body: bytes) -> list[list[float]]:
    """The training losses of every run in an update."""
    return [piece["curves"]["train"]["y"]["loss"] for name, piece in json.loads(body)["pieces"].items() if name.startswith("run ")]


def test_it_answers_what_its_page_asks_and_nothing_else(make_run, serve) -> None:
    folders = [make_run("a", [3.0, 2.5]), make_run("b", [3.0, 2.0])]
    server = serve(Watched(folders, Counted(folders)))
    page, body = ask(server, "/")
    assert (page.status, page.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert b"b ended lowest" in body
    assert page.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
    assert page.getheader("X-Content-Type-Options") == "nosniff"
    assert page.getheader("Access-Control-Allow-Origin") is None
    update, body = ask(server)
    assert (update.status, update.getheader("Content-Type")) == (200, "application/json")
    assert drawn(body) == [[3.0, 2.5], [3.0, 2.0]]
    for path in ("/favicon.ico", "/update/", "/update?x", "/../config.json", "/%2e%2e/", "http://example.org/"):
        assert ask(server, path)[0].status == 404
    for method in ("HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        refused, _ = ask(server, "/", method)
        assert (refused.status, refused.getheader("Allow")) == (405, "GET")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8000", 200),  # by a forwarded port
        ("127.0.0.1:1", 200),
        ("example.org", 421),
        ("localhost.example.org", 421),
        ("127.0.0.1.example.org:80", 421),
        ("localhost:80:90", 421),
        ("0.0.0.0", 421),
    ],
)
def test_only_callers_that_know_it_as_this_machine_are_answered(make_run, serve, host: str, status: int) -> None:
    folders = [make_run("a", [3.0])]
    response, body = ask(serve(Watched(folders, Counted(folders))), "/", host=host)
    assert response.status == status
    assert (b"loss" in body) == (status == 200)


def test_a_request_without_a_host_is_refused(make_run, serve) -> None:
    folders = [make_run("a", [3.0])]
    server = serve(Watched(folders, Counted(folders)))
    with socket.create_connection((LOOPBACK, server.server_port), timeout=60) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 421 ")


def test_it_listens_on_the_loopback_interface_alone(make_run, serve) -> None:
    folders = [make_run("a", [3.0])]
    server = serve(Watched(folders, Counted(folders)))
    assert server.server_address[0] == "127.0.0.1"
    assert server.address == f"http://127.0.0.1:{server.server_port}/"


def test_a_port_that_is_taken_is_a_users_mistake(make_run, serve) -> None:
    folders = [make_run("a", [3.0])]
    watched = Watched(folders, Counted(folders))
    with pytest.raises(UserError, match="choose another --port"):
        Server(watched, serve(watched).server_port)
    with pytest.raises(UserError, match="choose another --port"):
        Server(watched, 70_000)


def test_it_computes_again_only_when_a_file_has_changed(make_run, serve) -> None:
    folders = [make_run("a", [3.0, 2.5]), make_run("b", [3.0])]
    compute = Counted(folders)
    server = serve(Watched(folders, compute, rest=0.0))
    first, _ = ask(server)
    tag = first.getheader("ETag")
    for _ in range(3):
        same, body = ask(server, **{"If-None-Match": tag})
        assert (same.status, body, same.getheader("ETag")) == (304, b"", tag)
    assert compute.times == 1
    append(folders[1], 2, 3)
    grown, body = ask(server, **{"If-None-Match": tag})
    assert (grown.status, compute.times) == (200, 2)
    assert drawn(body) == [[3.0, 2.0, 2.0]]  # the other run is not sent again
    assert "run 0" in json.loads(body)["names"]
    assert drawn(ask(server, **{"If-None-Match": '"of another server"'})[1]) == [[3.0, 2.5], [3.0, 2.0, 2.0]]
    assert grown.getheader("ETag") != tag


def test_many_connections_take_neither_threads_nor_the_place_of_a_new_one(make_run, serve) -> None:
    folders = [make_run("a", [3.0])]
    server = serve(Watched(folders, Counted(folders)))
    before = threading.active_count()
    slow = [socket.create_connection((LOOPBACK, server.server_port), timeout=60) for _ in range(4 * CONNECTIONS)]
    assert ask(server)[0].status == 200
    assert slow[0].recv(1) == b""  # closed
    deadline = time.monotonic() + 60
    while threading.active_count() > before + CONNECTIONS:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    for connection in slow:
        connection.close()


@pytest.mark.parametrize("rest", [0.0, 1e6])
def test_it_rests_after_computing(make_run, rest: float) -> None:
    folders = [make_run("a", [3.0])]
    watched = Watched(folders, Counted(folders), rest)
    first = watched.newest()
    append(folders[0], 2)
    assert (watched.newest() is first) == bool(rest)


def test_a_run_that_is_damaged_or_not_there_yet_is_a_problem_and_no_end(make_run, serve, tmp_path: Path) -> None:
    here, later = make_run("here", [3.0, 2.5]), tmp_path / "later"
    folders = [here, later]
    server = serve(Watched(folders, Counted(folders), rest=0.0))
    assert str(later) in json.loads(ask(server)[1])["pieces"]["part problems"]
    append(here, 3, cut=10)
    update = ask(server)[1]
    assert "is cut short in line 3" in json.loads(update)["pieces"]["part problems"]
    assert drawn(update) == [[3.0, 2.5]]
    whole = (here / "metrics.jsonl").read_bytes()
    (here / "metrics.jsonl").write_bytes(whole[: whole.rindex(b"\n") + 1])
    append(here, 3, 4)
    make_run("later", [3.0])
    update = ask(server)[1]
    assert json.loads(update)["pieces"]["part problems"] == ""
    assert drawn(update) == [[3.0, 2.5, 2.0, 2.0], [3.0]]


def test_a_run_that_is_begun_in_a_watched_folder_appears(make_run, serve, tmp_path: Path) -> None:
    folders = [tmp_path / "all"]
    make_run("all/b", [3.0])
    server = serve(Watched(folders, Counted(folders), rest=0.0))
    assert drawn(ask(server)[1]) == [[3.0]]
    make_run("all/a", [2.0])
    assert drawn(ask(server)[1]) == [[2.0], [3.0]]


def test_nothing_to_draw_yet_is_a_page(tmp_path: Path, serve) -> None:
    folders = [tmp_path / "a", tmp_path / "b"]
    page, body = ask(serve(Watched(folders, Counted(folders))), "/")
    assert page.status == 200
    assert str(tmp_path / "b").encode() in body


def test_what_cannot_be_compared_just_now_is_told_in_words(make_run, serve) -> None:
    folder = make_run("a", [3.0])
    server = serve(Watched([folder], lambda: compare(load_runs([folder]), baseline="b")))
    response, body = ask(server)
    assert response.status == 503
    assert b"--baseline b" in body


@pytest.fixture
def watching() -> Iterator[Callable[..., tuple[subprocess.Popen[str], str]]]:
    """Starts `mhsh compare --watch` and gives its process and address."""
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str | Path) -> tuple[subprocess.Popen[str], str]:
        process = subprocess.Popen(
            [sys.executable, "-m", "mhsh", "compare", "--watch", *map(str, arguments)],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        line = process.stdout.readline()
        match = re.search(r"http://127\.0\.0\.1:[0-9]+/", line)
        assert match, line
        return process, match.group()

    yield start
    for process in processes:
        process.kill()
        process.communicate()


def test_an_interrupt_ends_it_well_and_nothing_is_written(make_run, watching, tmp_path: Path) -> None:
    process, _ = watching(make_run("a", [3.0]))
    before = sorted(tmp_path.rglob("*"))
    process.send_signal(signal.SIGINT)
    assert process.wait(60) == 0
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
def test_in_a_browser_the_curves_grow_and_the_reader_keeps_his_place(make_run, watching, tmp_path: Path) -> None:
    shape = {"num_layers": 16, "num_heads": 1, "mlp_dim": 32}
    folders = [make_run(f"shallow {seed}", [4 - 0.05 * i for i in range(20)], training={"seed": seed}) for seed in range(2)]
    process, address = watching(*folders, tmp_path / "deep")
    with Browser(1280) as browser:
        browser.visit(address)
        longest = "Math.max(...report.view().lines.map(line => line.x.at(-1)))"
        boxes = "[...document.querySelectorAll('#legend input')]"
        browser.evaluate("location.hash = '#axis=tokens&view=runs&zoom=1000%2C9000&open=groups-fold'")
        browser.wait("report.view().state.axis === 'tokens'")
        browser.evaluate(f"{boxes}[0].click()")
        browser.evaluate(f"{boxes}[1].focus()")
        browser.evaluate("document.querySelector('.scroll').scrollLeft = 5")
        assert browser.evaluate(longest) == 20 * 512
        append(folders[1], 21, 22, 23)
        browser.wait(f"{longest} === 23 * 512")
        make_run("deep", [4.0, 3.0], model=shape)
        browser.wait(f"{boxes}.length === 3")
        assert browser.evaluate(f"{boxes}.map(box => box.checked)") == [False, True, True]
        assert browser.evaluate("document.activeElement.closest('label').textContent").strip() == "shallow 1"
        assert browser.evaluate("report.view().state.zoom") == [1000, 9000]
        assert browser.evaluate("report.view().plot.axes[0].label") == "training tokens"
        assert browser.evaluate("report.view().state.view") == "runs"
        assert browser.evaluate("document.getElementById('groups-fold').open")
        assert "deep" in browser.evaluate("document.getElementById('groups').textContent")
        append(folders[0], 21, cut=5)
        browser.wait("document.getElementById('problems').textContent.includes('is cut short in line 21')")
        assert browser.complaints() == []
        assert set(browser.requests()) == {address, f"{address}update"}
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0
        browser.wait("document.getElementById('live').textContent.includes('no longer answers')")
