"""A lock in a bucket of Google Cloud Storage: an object that its holder creates, refreshes and
deletes.

A write names the generation that it replaces (0: no object exists), and fails if the object has
another one. So only one of two processes creates it. A lock outlives a process that dies: it is
dead when it has not been refreshed for DEAD_SECONDS. Processes watch it for that long, so that no
two clocks have to agree.

Source: https://cloud.google.com/storage/docs/request-preconditions
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping

from mhsh.errors import Unavailable, UserError
from mhsh.storage.bucket import is_transient
from mhsh.storage.outage import LOGIN

REFRESH_SECONDS = 10.0
DEAD_SECONDS = 45.0
_POLL_SECONDS = 1.0
_TIMEOUT_SECONDS = 10.0  # of one request


@contextlib.contextmanager
def bucket_lock(path: str, holder: Mapping[str, object], waiting: Callable[[], None]) -> Iterator[None]:
    """Holds the lock object gs://BUCKET/NAME inside the `with`; its content is `holder`.

    If the object exists, this process calls `waiting` and waits up to DEAD_SECONDS to see whether
    the lock is dead. A holder that was frozen and finds its lock taken ends at once with status 2,
    before it can write into the other's run.

    Raises:
      BlockingIOError: another process holds it.
      UserError: the bucket does not answer, or allows no writing.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from requests.exceptions import RequestException

    try:
        lock = _Lock(path, holder)
        lock.acquire(waiting)
    except (GoogleAPIError, GoogleAuthError, RequestException) as error:
        said = f"cannot lock {path}: {str(error).splitlines()[0]}"
        if is_transient(error):
            raise Unavailable(f"{said}; check the bucket, and run the same command again") from error
        raise UserError(f"{said}; check the bucket, and {LOGIN}") from error
    released = threading.Event()
    thread = threading.Thread(target=lock.refresh_until, args=(released,), name="bucket lock", daemon=True)
    thread.start()
    try:
        yield
    finally:
        released.set()
        thread.join()
        lock.release()


class _Lock:
    def __init__(self, path: str, holder: Mapping[str, object]) -> None:
        from google.cloud import storage  # an extra, and half a second

        bucket, _, name = path.removeprefix("gs://").partition("/")
        self._path = path
        self._bucket, self._name = storage.Client().bucket(bucket), name
        self._content = json.dumps(dict(holder), indent=2) + "\n"
        self._mark = {"lock": uuid.uuid4().hex}  # tells an own write whose answer was lost from another's
        self._generation = 0

    def acquire(self, waiting: Callable[[], None]) -> None:
        if self._write(0):
            return
        seen = self._current()
        if seen is not None:
            waiting()
        deadline = time.monotonic() + DEAD_SECONDS
        while seen is not None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            now = self._current()
            if now is not None and now != seen:
                raise BlockingIOError(f"{self._path} is refreshed by another process")
            seen = now
        if not self._write(seen or 0):
            raise BlockingIOError(f"another process has just taken {self._path}")

    def refresh_until(self, released: threading.Event) -> None:
        while not released.wait(REFRESH_SECONDS):
            self._refresh()

    def release(self) -> None:
        from google.api_core.exceptions import GoogleAPIError

        self._refresh()  # a process that wakes and ends at once finds out here
        # A lock that cannot be deleted is dead after DEAD_SECONDS.
        with contextlib.suppress(GoogleAPIError, OSError):
            self._bucket.blob(self._name).delete(if_generation_match=self._generation, timeout=_TIMEOUT_SECONDS)

    def _refresh(self) -> None:
        """Writes the object again; ends this process if another one has taken it."""
        from google.api_core.exceptions import GoogleAPIError

        try:
            kept = self._write(self._generation)
        except (GoogleAPIError, OSError):
            return  # the next refresh sees whether another process has taken the lock
        if not kept:
            line = f"mhsh: {self._path} was taken by another process, as this one had not refreshed it for long; stopped\n"
            os.write(2, line.encode())
            os._exit(2)

    def _write(self, generation: int) -> bool:
        """Replaces the object of that generation. False if it has another one and is not ours."""
        from google.api_core.exceptions import PreconditionFailed

        blob = self._bucket.blob(self._name)  # a new one, because a Blob keeps the generation that it has read
        blob.metadata = self._mark
        try:
            blob.upload_from_string(
                self._content, "application/json", if_generation_match=generation, timeout=_TIMEOUT_SECONDS, retry=None
            )
        except PreconditionFailed:
            blob = self._bucket.get_blob(self._name, timeout=_TIMEOUT_SECONDS)
            if blob is None or blob.metadata != self._mark:
                return False
        self._generation = int(blob.generation or 0)
        return True

    def _current(self) -> int | None:
        """The object's generation, or None if it does not exist."""
        blob = self._bucket.get_blob(self._name, timeout=_TIMEOUT_SECONDS)
        return None if blob is None else blob.generation
