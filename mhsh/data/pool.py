"""A function over numbered chunks of work: in this process, in several local ones, or wherever an
Apache Beam runner takes it.

The function gets a chunk's number and returns nothing: what it makes it leaves in files, so it is
the same function on every runner, nothing large goes between processes, and its outcome cannot hang
on who ran which chunk when.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib
import multiprocessing
import os
import shlex
import signal
import threading
import traceback
from collections.abc import Callable, Iterable, Iterator
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from mhsh.errors import UserError

Work = Callable[[int], None]  # a function or an instance of a class, of a module, so that another process can import it
Done = Callable[[int], None]  # told the number of each chunk that is done, in no certain order

_DEATH_SECONDS = 10


def run_chunks(work: Work, chunks: Iterable[int], workers: int, done: Done) -> None:
    """Runs `work` on every chunk: one after the other here for one worker, else in `workers` new
    processes.

    The processes are started afresh (never forked: threads of libraries do not survive that), each
    has one chunk at a time, and none outlives this call, or this process, however it ends.

    Raises:
      UserError: what the first failing chunk raised, or a process that died.
      OSError: a full disk, from whichever process met it.
    """
    if workers < 1:
        raise UserError(f"--workers={workers} must be 1 or more")
    if workers == 1:
        for chunk in chunks:
            work(chunk)
            done(chunk)
        return
    remaining = iter(chunks)
    team: list[_Worker] = []
    try:
        for _ in range(workers):
            # No more processes than chunks.
            if (chunk := next(remaining, None)) is None:
                break
            team.append(_Worker.started(work))
            team[-1].give(chunk)
        busy: dict[Any, _Worker] = {worker.connection: worker for worker in team}
        while busy:
            for connection in wait([*busy]):
                worker = busy[connection]
                done(worker.result())
                if (chunk := next(remaining, None)) is None:
                    del busy[connection]
                else:
                    worker.give(chunk)
    finally:
        for worker in team:
            worker.process.kill()
        for worker in team:
            worker.process.join()


def run_chunks_on_beam(work: Work, chunks: Iterable[int], options: str) -> None:
    """Runs `work` on every chunk on an Apache Beam runner, whose workers must see the same files
    under the same paths.

    Args:
      options: Beam's pipeline options as on a command line, such as "--runner=FlinkRunner
        --parallelism=64"; empty: Beam's own.

    Raises:
      UserError: Beam is not installed, or what the first failing chunk raised.
    """
    try:
        beam: Any = importlib.import_module("apache_beam")
        pipeline_options: Any = importlib.import_module("apache_beam.options.pipeline_options")
    except ModuleNotFoundError as error:
        raise UserError(f"--runner=beam needs Apache Beam ({error}); pip install 'mhsh[beam]'") from error
    try:
        # Without Reshuffle a runner may keep the chunks together, on one worker.
        with beam.Pipeline(options=pipeline_options.PipelineOptions(shlex.split(options))) as pipeline:
            _ = pipeline | beam.Create(list(chunks)) | beam.Reshuffle() | beam.Map(work)
    except Exception as error:
        for cause in _causes(error):
            if isinstance(cause, UserError):
                raise cause from error
        raise


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


@dataclasses.dataclass(frozen=True)
class _Failure:
    """What an exception in a worker is here: the message for people, a full disk, or a defect with
    its traceback.
    """

    message: str = ""
    errno: int = 0  # of the system
    filename: str = ""
    traceback: str = ""

    @classmethod
    def of(cls, error: Exception) -> _Failure:
        if isinstance(error, UserError):
            return cls(message=str(error))
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return cls(errno=error.errno or 0, filename=str(error.filename or ""))
        return cls(traceback="".join(traceback.format_exception(error)))

    def raised(self, chunk: int) -> Exception:
        if self.message:
            return UserError(self.message)
        if self.errno:
            return OSError(self.errno, os.strerror(self.errno), self.filename or None)
        return RuntimeError(f"chunk {chunk} failed in a worker process:\n{self.traceback}")


class _Worker:
    """A process that runs one chunk after the other, and this side of the pipe to it."""

    def __init__(self, process: BaseProcess, connection: Connection) -> None:
        self.process = process
        self.connection = connection
        self.chunk = -1

    @classmethod
    def started(cls, work: Work) -> _Worker:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=_serve, args=(work, theirs), daemon=True)
        # Ctrl-C reaches all processes of a terminal; the parent alone decides what becomes of it. A
        # blocked signal stays blocked in the new process, from its first moment. (multiprocessing's
        # own helper unblocks it when it starts, so that has to happen before.)
        resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        # With our copy of their end closed, the pipe breaks when the process dies.
        theirs.close()
        return cls(process, ours)

    def give(self, chunk: int) -> None:
        self.chunk = chunk
        try:
            self.connection.send(chunk)
        except BrokenPipeError:
            raise self._death() from None

    def result(self) -> int:
        """The number of the chunk that is done. Raises what it raised, or UserError where the
        process died.
        """
        try:
            failure: _Failure | None = self.connection.recv()
        except (EOFError, ConnectionResetError):
            raise self._death() from None
        if failure is not None:
            raise failure.raised(self.chunk)
        return self.chunk

    def _death(self) -> UserError:
        self.process.join(_DEATH_SECONDS)
        code = self.process.exitcode
        how = f"by signal {-code}" if code is not None and code < 0 else f"with exit status {code}"
        return UserError(
            f"a worker process ended {how} in chunk {self.chunk} (signal 9: perhaps the system, for want of memory); run the same "
            "command again to go on from there, with fewer --workers if memory was short"
        )


def _serve(work: Work, connection: Connection) -> None:
    """The life of a worker process: chunks in, None or a _Failure out, until the pipe or the parent
    ends.
    """
    # The worker is one of many: the tokenizer's own threads would only fight over the cores.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_end_with_parent, daemon=True).start()
    while True:
        try:
            chunk: int = connection.recv()
        except EOFError:
            return
        try:
            work(chunk)
            outcome = None
        except Exception as error:
            outcome = _Failure.of(error)
        connection.send(outcome)


def _end_with_parent() -> None:
    """A parent that was killed cannot stop its workers; whoever starts again must not meet them at
    work.
    """
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os._exit(1)
