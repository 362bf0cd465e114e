"""A contestant in a process of its own, as it is when it runs alone.

Two in one process share a heap and hold each other up: with PyTorch beside it, a step of 144l1h took 5.0 s on two cores, and 3.9
without.
"""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from mhsh.bench.contestant import Contestant
from mhsh.errors import UserError


class OtherProcess:
    """A process that holds one contestant and takes its turns when told to; it ends with this one."""

    def __init__(self, build: Callable[..., Contestant], *arguments: Any) -> None:
        """Starts it and waits until `build(*arguments)` has made the contestant there.

        Raises:
          UserError: what `build` raised, or that the process ended.
        """
        spawn = multiprocessing.get_context("spawn")
        self._connection, other_end = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(other_end, build, arguments), daemon=True)
        # An interrupt is for this process: the other inherits that it does not hear it.
        heard = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, heard)
        other_end.close()
        self._cpu_seconds = 0.0
        self.contestant = dataclasses.replace(
            self._answer(), run=lambda count: self._ask("run", count), check=lambda: self._ask("check")
        )

    def cpu_seconds(self) -> float:
        """CPU time of the process with all its threads, up to the end of its last turn."""
        return self._cpu_seconds

    def _ask(self, what: str, *arguments: int) -> None:
        with contextlib.suppress(BrokenPipeError):  # the answer says what happened
            self._connection.send((what, *arguments))
        self._cpu_seconds = self._answer()

    def _answer(self) -> Any:
        try:
            answer = self._connection.recv()
        except (EOFError, ConnectionResetError):
            self._process.join()
            raise UserError(
                f"the process of a peer ended with status {self._process.exitcode}; what it printed stands above"
            ) from None
        if isinstance(answer, UserError):
            raise answer
        return answer


def _serve(connection: Connection, build: Callable[..., Contestant], arguments: tuple[Any, ...]) -> None:
    try:
        contestant = build(*arguments)
        connection.send(dataclasses.replace(contestant, run=_stays, check=_stays))
    except UserError as error:
        connection.send(error)
        return
    while True:
        try:
            what, *counts = connection.recv()
        except EOFError:  # nobody asks any more
            return
        try:
            getattr(contestant, what)(*counts)
        except UserError as error:
            connection.send(error)
        else:
            connection.send(time.process_time())


def _stays(*_: Any) -> None:
    """In place of functions, which do not go from process to process."""
