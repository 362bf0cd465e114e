"""A bucket whose requests fail as a test says."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mhsh.storage import outage
from mhsh.storage.bucket import check_bucket
from tests.buckets import bucket_variables, emulator
from tests.faulty_bucket import FaultyBucket


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyBucket]:
    with emulator(tmp_path_factory.mktemp("emulator") / "log", "runs") as address, FaultyBucket(address).serving() as proxy:
        yield proxy


@pytest.fixture
def faulty(server: FaultyBucket, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyBucket]:
    """A proxy of the bucket `runs`, whose requests fail as `decide` says, and an outage that is
    borne for two seconds.
    """
    for name, value in bucket_variables(server.address).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(outage._outage, "patience", 2.0)
    monkeypatch.setattr(outage, "_FIRST_PAUSE", 0.05)
    server.decide = lambda number, method, path: None
    check_bucket("gs://runs")
    yield server
    server.decide = lambda number, method, path: None
    outage.note_answer()
