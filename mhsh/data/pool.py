"""Runs a function on numbered chunks of work: here, or in local processes.

The function takes the number of a chunk and returns nothing: it leaves its results in files. So the
same function runs everywhere, and the result does not depend on which process ran which chunk.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

from mhsh.errors import UserError

Work = Callable[[int], None]  # picklable: a function of a module, or an instance of a class of a module
Done = Callable[[int], None]  # called with the number of each finished chunk, in any order


def run_chunks(work: Work, chunks: Iterable[int], workers: int, done: Done) -> None:
    """Runs `work` on every chunk: here if `workers` is 1, else in that many new processes.

    They are spawned, as the threads of libraries do not survive a fork, and end with this call, or
    with this process, however it ends. Raises the error of the first chunk that failed, or
    UserError where a worker process was killed.
    """
    if workers == 1:
        for chunk in chunks:
            work(chunk)
            done(chunk)
        return
    context = multiprocessing.get_context("spawn")
    end, stop = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(workers, context, _start_worker, (work, end))
    try:
        # Of Ctrl-C only this process hears: a signal that is blocked stays so in a new process.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            running = {pool.submit(_run_chunk, chunk): chunk for chunk in chunks}
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        for future in concurrent.futures.as_completed(running):
            future.result()
            done(running[future])
    except BrokenProcessPool as error:
        raise UserError(
            "a worker process was killed, perhaps by the system for lack of memory; run the same command again to resume, with "
            "fewer --workers if memory was short"
        ) from error
    finally:
        stop.close()
        pool.shutdown(cancel_futures=True)
        end.close()


_work: Work  # of a worker process


def _start_worker(work: Work, end: Connection) -> None:
    global _work  # noqa: PLW0603  an initializer has no other way to pass it on
    _work = work
    # All cores are busy with workers; the threads of the tokenizers would only compete for them.
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    threading.Thread(target=_exit_with_parent, args=(end,), daemon=True).start()


def _exit_with_parent(end: Connection) -> None:
    """Ends this process when the other end of the pipe is closed, by the parent or with it."""
    end.poll(None)
    os._exit(1)


def _run_chunk(chunk: int) -> None:
    try:
        _work(chunk)
    except (UserError, OSError):
        raise
    except Exception as error:  # some exceptions cannot be pickled
        raise RuntimeError(f"chunk {chunk} failed in a worker process:\n{traceback.format_exc()}") from error
