"""The other processes of a run, joined and watched: when one is lost, every other one ends at once
with status 75, in one line that names it, and the same command starts all of them again.

Every process holds a connection to process 0. The kernel closes it when a process dies, however it
dies, and its keepalive probes find a machine that is gone within `LOST_SECONDS`. A process that is
slow or frozen still answers them: that is the watchdog's affair. Without this a survivor would wait
for a collective, or jax's own client would abort it after up to 100 seconds.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import selectors
import socket
import threading
import time
from types import TracebackType
from typing import Any

import jax
from orbax.checkpoint import multihost

from mhsh.cluster.coordination import connect
from mhsh.errors import Unavailable, UserError

JOIN_SECONDS = 300
LOST_SECONDS = 8
_PROBES = 3
_NEWS_SECONDS = LOST_SECONDS + 2  # until it is known whether a process was lost
_KEY = "mhsh/peers"  # in the coordination service: where process 0 listens, and what members of the run say first
_CONNECT_SECONDS, _INTRODUCTION_SECONDS, _OWN_ERROR_SECONDS = 60, 5, 1
_STANDARD_ERROR = 2
_LONGEST_LINE = 200


def join(*, coordinator: str | None, num_processes: int | None, process_id: int | None) -> Peers:
    """Joins the processes of a run. Must be called before anything asks jax for devices. Inside the
    `with` of what it returns, the loss of one process ends the others. Where one does not come
    within JOIN_SECONDS, this process ends with status 75.

    If all three are None, JAX finds them itself (TPU VMs, GKE, Slurm, Open MPI). Raises UserError
    where the other processes cannot be found or reached.
    """
    peers = Peers()
    # jax would wait as long, and then abort with its stack.
    missing = f"not all processes of this run have joined within {JOIN_SECONDS} s"
    timer = threading.Timer(
        JOIN_SECONDS, peers.end_process, [f"{missing}; look at their logs, and run the same command again on all"]
    )
    timer.daemon = True
    timer.start()
    try:
        # jax's own service would take SIGTERM away from Python; processes agree by StopAgreement.
        jax.config.update("jax_enable_preemption_service", False)
        place = connect(coordinator, num_processes, process_id, 2 * JOIN_SECONDS)
        host = place.coordinator.rpartition(":")[0].strip("[]")
        peers.connect(place.process, place.count, multihost.get_jax_distributed_client(), host)
    except (ValueError, RuntimeError, OSError) as error:
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"cannot join the other processes ({reason}); give --coordinator=HOST:PORT --num-processes=N --process-id=I"
        ) from error
    finally:
        timer.cancel()
    return peers


class Peers(contextlib.AbstractContextManager["Peers", None]):
    """The connections of this process to the others. Inside the `with`, the loss of one ends it."""

    def __init__(self) -> None:
        self._watching = True
        self._connections: dict[socket.socket, int] = {}  # and the number of the process at the other end
        self._lost = threading.Lock()

    def connect(self, process: int, count: int, client: Any, host: str) -> None:
        """Joins the `count` processes; `client` is that of jax's coordination service, `host` the
        machine of process 0. Where it cannot be reached, training goes on without this watch.
        """
        if process == 0:
            server = _open_server(host)
            token = secrets.token_hex(16)
            client.key_value_set(_KEY, f"{token} {server.getsockname()[1]}")
            run = functools.partial(self._watch_all, server, token, count)
        else:
            token, port = client.blocking_key_value_get(_KEY, _CONNECT_SECONDS * 1000).split()
            try:
                connection = _enable_keepalive(socket.create_connection((host, int(port)), _CONNECT_SECONDS))
                connection.sendall(f"{token} {process}\n".encode())
            except OSError as error:
                print(f"port {port} of {host} cannot be reached ({error}): a lost process is found late, by jax alone", flush=True)
                return
            connection.settimeout(None)
            self._connections[connection] = 0
            run = functools.partial(self._watch_process_0, connection)
        threading.Thread(target=run, name="peers", daemon=True).start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """This process ends by itself. Where that is for an error, the others end with status 2,
        and with 75 where it is Unavailable.
        """
        if _may_come_of_a_loss(error):
            time.sleep(_NEWS_SECONDS)
        self._watching = False
        failed = error is not None and not isinstance(error, (KeyboardInterrupt, SystemExit))
        word = b"unavailable\n" if isinstance(error, Unavailable) else b"failed\n" if failed else b"done\n"
        for connection in list(self._connections):
            with contextlib.suppress(OSError):
                connection.sendall(word)

    def end_process(self, what: str, status: int = os.EX_TEMPFAIL) -> None:
        """Ends this process with `status`, and says what is lost."""
        if self._watching and self._lost.acquire(blocking=False):
            os.write(_STANDARD_ERROR, f"mhsh: {what}\n".encode())
            os._exit(status)

    def _watch_all(self, server: socket.socket, token: str, count: int) -> None:
        """Tells all others, in process 0, when one is lost."""
        selector = selectors.DefaultSelector()
        selector.register(server, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is server:
                    connection, _ = server.accept()
                    index = _read_introduction(connection, token, count)
                    if index is None:
                        connection.close()
                    else:
                        self._connections[_enable_keepalive(connection)] = index
                        selector.register(connection, selectors.EVENT_READ)
                else:
                    connection = key.fileobj
                    assert isinstance(connection, socket.socket)
                    word, index = _read_line(connection), self._connections[connection]
                    selector.unregister(connection)
                    connection.close()
                    del self._connections[connection]
                    if word != "done":
                        self._tell(index, word)

    def _tell(self, index: int, word: str) -> None:
        for connection in self._connections if self._watching else ():
            with contextlib.suppress(OSError):
                connection.sendall(f"{index} {word}\n".encode())
        self._end(index, word)

    def _watch_process_0(self, connection: socket.socket) -> None:
        line = _read_line(connection)
        first, _, second = line.partition(" ")
        if first.isdecimal():
            self._end(int(first), second)
        elif line != "done":
            self._end(0, line)

    def _end(self, index: int, word: str) -> None:
        if word in ("failed", "unavailable"):
            time.sleep(_OWN_ERROR_SECONDS)  # this process may be about to say the same
        what = {
            "failed": "has ended with an error; look at its log",
            "unavailable": "has ended and can go on; look at its log; run the same command again on all",
        }.get(word, "is lost; run the same command again on all, and it goes on from its last checkpoint")
        self.end_process(f"process {index} of this run {what}", 2 if word == "failed" else os.EX_TEMPFAIL)


def _open_server(host: str) -> socket.socket:
    """Listens at an address of this machine: at `host`, or at all where that is another name of it,
    as behind a translation of addresses. Who does not know the run's token is turned away.
    """
    try:
        return socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError:
        return socket.create_server(("", 0))


def _may_come_of_a_loss(error: BaseException | None) -> bool:
    """Whether an error may come from a collective or a barrier, a moment before the news of the
    process that is lost. They raise errors of many classes, which UserErrors may be made of.
    """
    while isinstance(error, UserError | Unavailable | OSError):
        error = error.__cause__
    return isinstance(error, Exception)


def _enable_keepalive(connection: socket.socket) -> socket.socket:
    """Gives the connection keepalive probes, which find a silent machine within LOST_SECONDS."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 2), ("TCP_KEEPINTVL", (LOST_SECONDS - 2) // _PROBES), ("TCP_KEEPCNT", _PROBES)):
        connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return connection


def _read_introduction(connection: socket.socket, token: str, count: int) -> int | None:
    """The number of the process at the other end; None: it is not of this run."""
    connection.settimeout(_INTRODUCTION_SECONDS)
    their_token, _, index = _read_line(connection).partition(" ")
    connection.settimeout(None)
    known = secrets.compare_digest(their_token.encode(), token.encode()) and index.isdecimal() and 0 < int(index) < count
    return int(index) if known else None


def _read_line(connection: socket.socket) -> str:
    """The next line; empty where the other end is gone."""
    try:
        # Unbuffered: what follows the line stays in the socket.
        with connection.makefile("rb", buffering=0) as file:
            line = file.readline(_LONGEST_LINE)
    except OSError:
        return ""
    return line.decode(errors="replace").strip()
