"""A checkpoint is read once where several hosts have the same arrays, and every bit arrives."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from mhsh.training.checkpoints.replicas import num_replicas
from tests.clusters import finish, free_port, start_commands

WHOLE = 64 * 1024 * 4  # bytes of the largest array


@pytest.mark.parametrize(
    ("shape", "devices_per_process", "readers"),
    [
        ("4,1", 1, [0]),
        pytest.param("2,2", 1, [0, 1], marks=pytest.mark.slow),
        pytest.param("8,1", 2, [0], marks=pytest.mark.slow),  # two rows of data on each host
        pytest.param("1,4", 1, [0, 1, 2, 3], marks=pytest.mark.slow),  # no replicas
    ],
)
def test_four_processes_read_a_checkpoint_once(tmp_path, shape, devices_per_process, readers):
    program = [sys.executable, "-m", "tests.training.read_once", f"127.0.0.1:{free_port()}", "4"]
    processes = start_commands([[*program, str(index), str(tmp_path / "saved"), shape] for index in range(4)], devices_per_process)
    results = finish(processes)
    assert [status for status, _, _ in results] == [0] * 4, results
    found = [json.loads(out.splitlines()[-1]) for _, out, _ in results]
    assert all(each["same"] for each in found)
    assert [index for index, each in enumerate(found) if each["read"]] == readers
    # Random numbers do not compress; what else is read is small.
    assert WHOLE * 0.9 < sum(each["read"] for each in found) < WHOLE * 1.5


@pytest.mark.parametrize(
    ("shape", "per_host", "replicas"),
    [
        ((8, 1, 1), 2, 4),
        ((4, 2, 1), 2, 4),
        ((2, 4, 1), 2, 2),  # a replica on two hosts
        ((1, 8, 1), 1, 1),
        ((6, 1, 1), 3, 2),
    ],
)
def test_replicas_share_no_host(shape, per_host, replicas):
    hosts = np.arange(np.prod(shape)).reshape(shape) // per_host
    assert num_replicas(hosts) == replicas
