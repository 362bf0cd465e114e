"""Processes that watch each other, played by sockets of this one; tests/test_clusters.py kills real
ones.
"""

from __future__ import annotations

import queue
import socket
import threading
import time

import pytest

from mhsh.cluster import peers as peers_module
from mhsh.cluster.peers import Peers
from mhsh.errors import Unavailable, UserError

HOST = "127.0.0.1"


class Store:
    """The key-value store of the coordination service."""

    def __init__(self) -> None:
        self.values: dict[str, str] = {}

    def key_value_set(self, key: str, value: str) -> None:
        self.values[key] = value

    def blocking_key_value_get(self, key: str, milliseconds: int) -> str:
        return self.values[key]

    @property
    def token_and_port(self) -> tuple[str, int]:
        (value,) = self.values.values()
        return value.split()[0], int(value.split()[1])


Said = queue.Queue[tuple[str, int]]


@pytest.fixture
def run() -> tuple[Store, Peers, Said]:
    """Process 0 of a run of three, and what it ends with."""
    said: Said = queue.Queue()

    class Heard(Peers):
        """Its threads outlive the test, and may not end the process of the next one."""

        def end_process(self, what: str, status: int = 75) -> None:
            said.put((what, status))

    store, peers = Store(), Heard()
    peers.connect(0, 3, store, HOST)
    return store, peers, said


def member(store: Store, process: int) -> socket.socket:
    token, port = store.token_and_port
    connection = socket.create_connection((HOST, port), 10)
    connection.sendall(f"{token} {process}\n".encode())
    return connection


@pytest.mark.parametrize(
    ("word", "what", "status"),
    [("failed", "with an error; look at its log", 2), ("unavailable", "and can go on; look at its log; run the same", 75)],
)
def test_a_process_that_takes_leave_is_not_lost(run: tuple[Store, Peers, Said], word: str, what: str, status: int) -> None:
    store, _, said = run
    with member(store, 1) as one, member(store, 2) as two:
        one.sendall(b"done\n")
        two.sendall(f"{word}\n".encode())
    line, ends_with = said.get(timeout=10)
    assert line.startswith(f"process 2 of this run has ended {what}") and ends_with == status


@pytest.mark.parametrize("is_saving", [False, True])
def test_an_error_that_may_come_of_a_loss_waits_for_the_news(
    run: tuple[Store, Peers, Said], is_saving: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A collective's own, or what a save makes of it: an error for people, with its cause."""
    monkeypatch.setattr(peers_module, "_NEWS_SECONDS", 1)
    error: Exception = ValueError("Connection closed by peer")
    if is_saving:
        cause, error = error, UserError("the checkpoint could not be saved")
        error.__cause__ = cause
    store, peers, said = run
    one = member(store, 1)
    threading.Timer(0.3, one.close).start()
    with member(store, 2) as two:
        peers.__exit__(type(error), error, None)
        assert said.get(timeout=10)[0].startswith("process 1 of this run is lost")
        assert two.recv(100).startswith(b"1 ")


@pytest.mark.parametrize(
    ("error", "word"), [(UserError("a wrong field"), b"failed\n"), (Unavailable("no answer for 600 s"), b"unavailable\n")]
)
def test_an_own_error_is_said_at_once(run: tuple[Store, Peers, Said], error: Exception, word: bytes) -> None:
    store, peers, _ = run
    with member(store, 1) as one, member(store, 2):
        time.sleep(0.5)
        begun = time.monotonic()
        peers.__exit__(type(error), error, None)
        assert one.recv(100) == word and time.monotonic() - begun < peers_module._NEWS_SECONDS


@pytest.mark.parametrize("line", [b"guess 1\n", b"x" * 500, b"TOKEN 3\n", b"TOKEN one\n"])
def test_a_stranger_is_turned_away(run: tuple[Store, Peers, Said], line: bytes) -> None:
    store, _, said = run
    token, port = store.token_and_port
    with socket.create_connection((HOST, port), 10) as stranger:
        stranger.sendall(line.replace(b"TOKEN", token.encode()))
        with pytest.raises((ConnectionResetError, AssertionError)):
            assert stranger.recv(1), "closed"
    member(store, 1).close()
    assert said.get(timeout=10)[0].startswith("process 1 of this run is lost")


def test_without_a_way_to_process_0_training_goes_on(capsys: pytest.CaptureFixture[str]) -> None:
    store = Store()
    with socket.socket() as closed:
        closed.bind((HOST, 0))
        store.key_value_set("mhsh/peers", f"token {closed.getsockname()[1]}")
        Peers().connect(1, 2, store, HOST)
    assert "cannot be reached" in capsys.readouterr().out
