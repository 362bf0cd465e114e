"""The client of Google Cloud Storage that all of mhsh, Orbax and fsspec use: it tells what is
absent from what it could not find out.

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
import logging
import os
import socket
from collections.abc import Iterator
from typing import Any

from etils import epath

from mhsh.errors import Unavailable, UserError, install_command
from mhsh.storage.outage import LOGIN, TRANSIENT, Request, answered, one_try

# A connection on which nothing comes for so long is given up; gcsfs and TensorStore would wait.
_SILENT_SECONDS = 30
# https://cloud.google.com/storage/docs/retry-strategy
_TRANSIENT_STATUS = ("408", "429", "500", "502", "503", "504")


class Refused(UserError, OSError):
    """The bucket is not there, or not for this login."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.errno, self.strerror = errno.EACCES, self.args[0]

    def __str__(self) -> str:
        return self.args[0]


@functools.cache
def register() -> None:
    """Makes the client that of gs:// for this process; before its first request. Needs gcsfs."""
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
                        answered()
                        raise _named(error, where) from error
                    await asyncio.sleep(tries.failed(error))
                else:
                    answered()
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


def _named(error: Exception, where: str) -> Exception:
    """The error of a request as a line, where it is a refusal."""
    from gcsfs.retry import HttpError
    from google.auth.exceptions import GoogleAuthError

    said = " ".join(str(error).split())[:200]
    denied = isinstance(error, HttpError) and str(error.code) in ("401", "403")
    if denied or isinstance(error, GoogleAuthError) or (isinstance(error, OSError) and said.startswith("Forbidden")):
        return Refused(f"cannot use {where}: {said}; {LOGIN}")
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
        raise Refused(f"there is no bucket gs://{bucket}; make it, or correct the name") from None


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
