"""Tests of the served report: a real server, whom it answers and what, when it computes, and the
page as it grows in a browser.
"""

from __future__ import annotations

import dataclasses
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mhsh.errors import UserError
from mhsh.report.report import Report
from mhsh.report.watch import LOOPBACK, LiveReport, Server
from tests.report.browser import PROGRAM, Browser
from tests.report.reports import content_of, planted_report


class Grows:
    """A folder with a run, and its report: of as many rows as the run has lines."""

    def __init__(self, folder: Path, parents: bool = False) -> None:
        self.folder = folder
        self.times = 0
        self.problems: tuple[str, ...] = ()
        folder.mkdir(parents=parents)
        (folder / "config.json").write_text("{}")
        self.write(20)

    def write(self, rows: int) -> None:
        (self.folder / "metrics.jsonl").write_text("\n" * rows)

    def __call__(self) -> Report:
        self.times += 1
        rows = len((self.folder / "metrics.jsonl").read_text())
        if not rows:
            raise UserError("no rows yet")
        return dataclasses.replace(planted_report(rows=rows), problems=self.problems)


@pytest.fixture
def grows(tmp_path: Path) -> Grows:
    return Grows(tmp_path / "run")


@pytest.fixture
def serve() -> Iterator[Callable[[LiveReport], Server]]:
    servers: list[tuple[Server, threading.Thread]] = []

    def start(report: LiveReport) -> Server:
        server = Server(report, 0)
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
    server: Server, path: str = "/", method: str = "GET", host: str | None = None, **headers: str
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection(LOOPBACK, server.server_port, timeout=60)
    connection.request(method, path, headers={"Host": host or f"{LOOPBACK}:{server.server_port}", **headers})
    response = connection.getresponse()
    body = response.read()
    connection.close()
    return response, body


def test_it_answers_what_its_page_asks_and_nothing_else(grows: Grows, serve) -> None:
    server = serve(LiveReport([grows.folder], grows))
    page, body = ask(server)
    assert (page.status, page.getheader("Content-Type")) == (200, "text/html; charset=utf-8")
    assert b"6x4 post_ln ended lowest" in body
    assert page.getheader("Content-Security-Policy") == "frame-ancestors 'none'"
    assert page.getheader("X-Content-Type-Options") == "nosniff"
    assert page.getheader("Access-Control-Allow-Origin") is None
    for path in ("/favicon.ico", "/update", "/?x", "/../config.json", "/%2e%2e/", "http://example.org/"):
        assert ask(server, path)[0].status == 404
    for method in ("HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
        assert ask(server, "/", method)[0].status == 501


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
def test_only_callers_that_know_it_as_this_machine_are_answered(grows: Grows, serve, host: str, status: int) -> None:
    response, body = ask(serve(LiveReport([grows.folder], grows)), host=host)
    assert response.status == status
    assert (b"loss" in body) == (status == 200)


def test_a_request_without_a_host_is_refused_and_it_listens_on_the_loopback_alone(grows: Grows, serve) -> None:
    server = serve(LiveReport([grows.folder], grows))
    assert server.server_address[0] == "127.0.0.1" and server.address == f"http://127.0.0.1:{server.server_port}/"
    with socket.create_connection((LOOPBACK, server.server_port), timeout=60) as plain:
        plain.sendall(b"GET / HTTP/1.0\r\n\r\n")
        assert plain.recv(100).startswith(b"HTTP/1.1 421 ")


def test_a_port_that_is_taken_is_a_users_mistake(grows: Grows, serve) -> None:
    report = LiveReport([grows.folder], grows)
    for port in (serve(report).server_port, 70_000):
        with pytest.raises(UserError, match="choose another --port"):
            Server(report, port)


def test_it_computes_and_sends_when_a_file_has_changed(grows: Grows, serve) -> None:
    server = serve(LiveReport([grows.folder], grows, rest=0.0))
    first, _ = ask(server)
    tag = first.getheader("ETag")
    for _ in range(3):
        same, body = ask(server, **{"If-None-Match": tag})
        assert (same.status, body, same.getheader("ETag")) == (304, b"", tag)
    assert grows.times == 1
    grows.write(30)
    grown, body = ask(server, **{"If-None-Match": tag})
    assert (grown.status, grows.times) == (200, 2) and grown.getheader("ETag") != tag
    assert len(content_of(body.decode())["runs"][5]["curves"]["train"]["rows"]["y"]["loss"]) == 30


@pytest.mark.parametrize("named", ["all/sweep", "all"])
def test_of_a_sweep_it_sees_the_plan_and_how_cells_ended(tmp_path: Path, named: str) -> None:
    sweep = tmp_path / "all" / "sweep"
    (sweep / "ends").mkdir(parents=True)
    grows = Grows(sweep / "runs" / "cell", parents=True)
    report = LiveReport([tmp_path / named], grows, rest=0.0)
    for times, path in enumerate([sweep / "plan.json", sweep / "ends/other.json"], 2):
        report.newest()
        path.write_text("{}")
        report.newest()
        assert grows.times == times


@pytest.mark.parametrize("rest", [0.0, 1e6])
def test_it_rests_after_computing(grows: Grows, rest: float) -> None:
    report = LiveReport([grows.folder], grows, rest)
    first = report.newest()
    grows.write(21)
    assert (report.newest() is first) == bool(rest)


def test_what_cannot_be_compared_just_now_is_told_in_words(grows: Grows, serve) -> None:
    grows.write(0)
    response, body = ask(serve(LiveReport([grows.folder], grows)))
    assert (response.status, body) == (503, b"no rows yet")


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="no Chromium on this machine")
def test_in_a_browser_the_curves_grow_and_the_reader_keeps_their_place(grows: Grows, serve) -> None:
    server = serve(LiveReport([grows.folder], grows, rest=0.0))
    with Browser(600) as browser:
        browser.call("Page.navigate", url=server.address)
        browser.wait("!!document.body && document.body.dataset.ready === 'true'")
        longest = "Math.max(...document.querySelector('.plot').chart.lines.map(line => line.x.at(-1)))"
        boxes = "[...document.querySelectorAll('#legend input')]"
        browser.evaluate("location.hash = '#axis=tokens&split=train&view=runs&x=1000%2C9000&metric.grad_norm=1&open=table1-fold'")
        browser.wait("report.state().axis === 'tokens'")
        browser.evaluate(f"{boxes}[0].click()")
        browser.evaluate(f"{boxes}[1].focus()")
        browser.evaluate("document.querySelector('.scroll').scrollLeft = 5")
        assert browser.evaluate(longest) == 20 * 512
        grows.problems = ("run: is cut short in line 30",)
        grows.write(30)
        browser.wait(f"{longest} === 30 * 512")
        assert browser.evaluate(f"{boxes}.map(box => box.checked)") == [False] + [True] * 5
        assert browser.evaluate("document.activeElement.closest('label').textContent").strip() == "6x4 post_ln seed 1"
        assert browser.evaluate("report.state().x") == [1000, 9000]
        assert browser.evaluate("report.state().metrics") == ["loss", "grad_norm"]
        assert browser.evaluate("document.querySelector('.plot').chart.plot.axes[0].label") == "training tokens"
        assert browser.evaluate("document.getElementById('table1-fold').open")
        assert browser.evaluate("document.querySelector('.problems').textContent").strip().endswith("is cut short in line 30")
        assert browser.complaints() == []
        assert set(browser.requests()) == {server.address}
