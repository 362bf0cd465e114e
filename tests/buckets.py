"""An emulator of Google Cloud Storage, started for a test."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.clusters import free_port
from tests.conftest import ROOT


@contextlib.contextmanager
def emulator(log: Path, bucket: str) -> Iterator[str]:
    """The address of a new emulator with one empty bucket."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    arguments = [sys.executable, "-m", "tests.bucket_server", str(port), bucket]
    with open(log, "wb") as file, subprocess.Popen(arguments, cwd=ROOT, stdout=file, stderr=file) as server:
        try:
            deadline = time.monotonic() + 60
            while not _answers(f"{address}/storage/v1/b"):
                assert server.poll() is None and time.monotonic() < deadline, log.read_text()
                time.sleep(0.1)
            yield address
        finally:
            server.terminate()


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


def bucket_variables(address: str) -> dict[str, str]:
    """Where gcsfs and TensorStore look for the bucket."""
    return {"NO_GCE_CHECK": "true", "STORAGE_EMULATOR_HOST": address, "TENSORSTORE_GCS_HTTP_URL": address}
