"""Google Cloud Storage: the client that all of mhsh, Orbax and fsspec use, and objects that one
process owns.

gcsfs takes any OSError of a question for "no such folder", among them a 502, and gives a request up
after half a minute. Here a question fails, transient failures are tried again until the deadline of
mhsh.storage.outage, and a refusal is one line at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import functools
import gzip
import importlib.util
import inspect
import json
import logging
import os
import socket
import uuid
from collections.abc import Iterator, Mapping
from typing import Any

from etils import epath

from mhsh.errors import Unavailable, UserError, install_command
from mhsh.storage.outage import LOGIN, TRANSIENT, Request, note_answer, one_try

# A connection on which nothing comes for so long is given up; gcsfs and TensorStore would wait.
_SILENT_SECONDS = 30
# https://cloud.google.com/storage/docs/retry-strategy
_TRANSIENT_STATUS = ("408", "429", "500", "502", "503", "504")


class BucketRefusal(UserError, OSError):
    """The bucket is not there, or not for this login."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno, self.strerror = errno.EACCES, self.args[0]

    def __str__(self) -> str:
        return self.args[0]


class LostObject(Exception):
    """Another process has written, or removed, an object that this one owned."""


class LostRun(UserError):
    """Another process has taken the run that this one trains."""


@functools.cache
def register() -> None:
    """Makes this client that of gs:// in this process. Call it before the first request. Needs
    gcsfs.
    """
    import fsspec
    from aiohttp import ClientTimeout
    from fsspec.config import conf
    from gcsfs.core import GCSFileSystem

    # They log what they raise, and repeat it for every file of a bucket whose kind is secret.
    for name in ("gcsfs", "fsspec.prefetcher", "google.auth._default"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    once = inspect.unwrap(GCSFileSystem._request)  # without gcsfs's own six tries

    class Bucket(GCSFileSystem):
        async def _isdir(self, path: str) -> bool:
            try:
                return (await self._info(path))["type"] == "directory"
            except FileNotFoundError:
                return False

        async def _request(self, method: str, path: str, *args: Any, **kwargs: Any) -> Any:
            where = f"gs://{'/'.join(args)}" if args else "Google Cloud Storage"
            tries = Request(where)
            while True:
                try:
                    async with asyncio.timeout(tries.seconds):
                        answer = await once(self, method, path, *args, **kwargs)
                except Exception as error:
                    if not is_transient(error):
                        note_answer()
                        raise _translate_error(error, where) from error
                    await asyncio.sleep(tries.note_failure(error))
                else:
                    note_answer()
                    return answer

    # Its cache of listings hides what other processes write: Orbax would wait for that for ever.
    for name in ("gs", "gcs"):
        fsspec.register_implementation(name, Bucket, clobber=True)
        silence = ClientTimeout(total=None, sock_connect=_SILENT_SECONDS, sock_read=_SILENT_SECONDS)
        conf.setdefault(name, {}).update(use_listings_cache=False, requests_timeout=silence)
    # Of TensorStore's requests, which are those of the checkpoints.
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", str(_SILENT_SECONDS))
    os.environ.setdefault("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1")


def is_transient(error: BaseException) -> bool:
    """Whether the same request may succeed later: the server, or the way to it, has failed."""
    import aiohttp
    import requests
    from gcsfs.retry import ChecksumError, HttpError
    from google.auth.exceptions import GoogleAuthError, TransportError

    if isinstance(error, HttpError):
        return str(error.code) in _TRANSIENT_STATUS
    if isinstance(error, aiohttp.ClientResponseError):
        return str(error.status) in _TRANSIENT_STATUS
    if isinstance(error, GoogleAuthError):
        return isinstance(error, TransportError) or error.retryable
    network = (aiohttp.ClientError, requests.ConnectionError, requests.Timeout, requests.exceptions.ChunkedEncodingError)
    if isinstance(error, (*network, ChecksumError, TimeoutError, ConnectionError, socket.gaierror)):
        return True
    return isinstance(error, OSError) and error.errno in TRANSIENT


def _translate_error(error: Exception, where: str) -> Exception:
    """The error of a request; a `BucketRefusal`, in one line, where the bucket refuses it."""
    from gcsfs.retry import HttpError
    from google.auth.exceptions import GoogleAuthError

    message = " ".join(str(error).split())[:200]
    denied = isinstance(error, HttpError) and str(error.code) in ("401", "403")
    if denied or isinstance(error, GoogleAuthError) or (isinstance(error, OSError) and message.startswith("Forbidden")):
        return BucketRefusal(f"cannot use {where}: {message}; {LOGIN}")
    return error


def is_remote(path: epath.PathLike) -> bool:
    """Whether a path is in a bucket."""
    return "://" in str(path)


def check_bucket(path: epath.PathLike) -> None:
    """Prepares this process for the bucket of `path`; does nothing for a local path. Raises
    UserError where it does not exist, or is not for this login. Raises Unavailable where nobody
    answers.
    """
    if not is_remote(path):
        return
    if not str(path).startswith("gs://"):
        raise UserError(f"cannot use {path}: runs and data are in local folders and in gs:// buckets; choose another")
    bucket = str(path).removeprefix("gs://").partition("/")[0]
    if not bucket:
        raise UserError(f"{path} names no bucket; write gs://BUCKET/NAME")
    if importlib.util.find_spec("gcsfs") is None:
        raise UserError(f"cannot use {path}: gcsfs is not installed; {install_command('gcs')}")
    register()
    _check_login(bucket, server())


def server() -> str:
    """The address of Google Cloud Storage, or of what stands in for it."""
    return os.environ.get("STORAGE_EMULATOR_HOST") or "https://storage.googleapis.com"


@functools.cache
def _check_login(bucket: str, server: str) -> None:
    """Asks for the name of one object. Before that, whether anybody listens: a server that drops
    packets would be waited for.
    """
    # Imported here because they are slow, and most runs are local.
    import urllib.error
    import urllib.request

    import fsspec

    try:
        with urllib.request.urlopen(server, timeout=4):  # seconds, for every address of the server
            pass
    except urllib.error.HTTPError:
        pass  # an answer
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise Unavailable(
            f"cannot reach gs://{bucket}: {server} does not answer ({getattr(reason, 'strerror', None) or reason}); check the "
            "network, or use a local folder"
        ) from error
    try:
        with one_try():
            fsspec.filesystem("gs").call("GET", "b/{}/o", bucket, maxResults=1, json_out=True)
    except FileNotFoundError:
        raise BucketRefusal(f"the bucket gs://{bucket} does not exist; make it, or correct the name") from None


@contextlib.contextmanager
def bucket_objects(path: epath.PathLike) -> Iterator[Any]:
    """The bucket that `path` is in, as a file system of fsspec, for use inside the `with`. Raises
    FileExistsError where a request inside the `with` names another generation than the object has.
    Raises OSError where the client failed, also inside the `with`; it has `strerror` and the path
    as given. Raises UserError where the bucket cannot be used, or does not answer.
    """
    check_bucket(path)
    import fsspec
    from aiohttp import ClientError
    from gcsfs.retry import HttpError

    try:
        yield fsspec.filesystem("gs")
    except FileNotFoundError as error:
        raise FileNotFoundError(errno.ENOENT, "no such object or bucket", str(path)) from error
    except FileExistsError:
        raise
    except (OSError, HttpError, ClientError) as error:
        if isinstance(error, gzip.BadGzipFile) or (isinstance(error, OSError) and error.errno is not None):
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise OSError(errno.EIO, reason, str(path)) from error


class GuardedObject:
    """The object gs://BUCKET/NAME. Each write names the generation that it replaces, and is refused
    where the object has another one: what a process writes late, after another has taken the
    object, changes nothing. It also bears its writer's mark, so that one whose answer was lost is
    told from another's.

    A write raises `LostObject`, and what `bucket_objects` raises.

    Source: https://cloud.google.com/storage/docs/request-preconditions
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._bucket, _, self._name = path.removeprefix("gs://").partition("/")
        self._mark, self._is_taken = {"writer": uuid.uuid4().hex}, False
        self._generation, self._size = 0, 0  # of the last own write; 0: there is no object

    def generation(self) -> int:
        """The generation of the object as it is now; 0: it does not exist."""
        return int(self._current().get("generation", 0))

    def write(self, content: bytes, generation: int | None = None) -> None:
        """Replaces the object of that generation, by default that of the last own write."""
        try:
            self._note(self._upload(self._name, content, self._generation if generation is None else generation))
        except FileExistsError:
            self._note(self._written_record())

    @contextlib.contextmanager
    def acquire(self) -> Iterator[GuardedObject]:
        """Yields this object of a run, for writing. The first call takes it for this process.
        Raises LostRun where another process has taken it since.
        """
        try:
            if not self._is_taken:
                self._take()
            yield self
        except LostObject:
            raise LostRun(
                f"another process has taken this run, and writes {self._path}; this one has stopped and changed nothing of it: "
                "let that one train, or stop it and run the same command again"
            ) from None

    def append(self, content: bytes) -> None:
        """Adds to an object that `acquire` has taken. It is composed of itself and the new part, so
        that the cost does not depend on its size. After an exception, what was to be appended is
        given again, with or without more after it.
        """
        while content:
            before = self._size
            try:
                self._note(self._append_part(content) if self._generation else self._upload(self._name, content, 0))
            except (FileExistsError, FileNotFoundError):
                self._note(self._written_record())
                content = content[self._size - before :]  # less what an earlier request has added
            else:
                return

    def delete(self) -> None:
        """Deletes what this process wrote."""
        with bucket_objects(self._path) as objects:
            objects.call("DELETE", "b/{}/o/{}", self._bucket, self._name, ifGenerationMatch=str(self._generation))

    def _take(self) -> None:
        """Makes the object, if there is one, this process's: it is composed of itself."""
        for _ in range(5):  # against others who write at that moment
            now = self._current()
            try:
                others = bool(now) and now.get("metadata") != self._mark
                self._note(self._compose([now], int(now["generation"])) if others else now)
            except (FileExistsError, FileNotFoundError):
                continue
            self._is_taken = True
            return
        raise LostObject(self._path)

    def _append_part(self, content: bytes) -> Mapping[str, Any]:
        folder, _, name = self._name.rpartition("/")
        part = self._upload(f"{folder}/.{name}.tmp", content)
        return self._compose([{"name": self._name, "generation": self._generation}, part], self._generation)

    def _note(self, written: Mapping[str, Any]) -> None:
        self._generation, self._size = int(written.get("generation", 0)), int(written.get("size", 0))

    def _written_record(self) -> Mapping[str, Any]:
        """The object's record. Raises LostObject where this process has not written it."""
        now = self._current()
        if now.get("metadata") != self._mark:
            raise LostObject(self._path)
        return now

    def _current(self) -> Mapping[str, Any]:
        """The object's record; empty: there is none."""
        with bucket_objects(self._path) as objects:
            try:
                return objects.call("GET", "b/{}/o/{}", self._bucket, self._name, json_out=True)
            except FileNotFoundError:
                return {}

    def _upload(self, name: str, content: bytes, generation: int | None = None) -> Mapping[str, Any]:
        """Writes an object in one request; None: whatever its generation is."""
        boundary = uuid.uuid4().hex
        record = json.dumps({"name": name, "metadata": self._mark})
        head = f"--{boundary}\nContent-Type: application/json\n\n{record}\n--{boundary}\nContent-Type: application/octet-stream\n\n"
        guard = {} if generation is None else {"ifGenerationMatch": str(generation)}
        return self._post(
            f"{server()}/upload/storage/v1/b/{{}}/o",
            uploadType="multipart",
            headers={"Content-Type": f"multipart/related; boundary={boundary}"},
            data=head.encode() + content + f"\n--{boundary}--".encode(),
            **guard,
        )

    def _compose(self, sources: list[Mapping[str, Any]], generation: int) -> Mapping[str, Any]:
        """Replaces the object of that generation by these objects, one after the other.

        Source: https://cloud.google.com/storage/docs/composite-objects
        """
        source_records = [{"name": each["name"], "generation": str(each["generation"])} for each in sources]
        body = {"destination": {"metadata": self._mark}, "sourceObjects": source_records}
        return self._post("b/{}/o/{}/compose", self._name, json=body, ifGenerationMatch=str(generation))

    def _post(self, path: str, *names: str, **request: Any) -> Mapping[str, Any]:
        with bucket_objects(self._path) as objects:
            return objects.call("POST", path, self._bucket, *names, json_out=True, **request)
