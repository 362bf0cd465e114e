"""The coordination service beside process 0, at the end of a run."""

from __future__ import annotations

import sys

import pytest

from tests.clusters import finish, free_port, start_commands

JOIN_AND_END = """
import sys
from mhsh.training.cluster import join, same_everywhere
with join(coordinator=sys.argv[1], num_processes=6, process_id=int(sys.argv[2])):
    assert same_everywhere("one", "value") and not same_everywhere("other", str(int(sys.argv[2]) // 5))
"""


@pytest.mark.parametrize("runs", [2, pytest.param(30, marks=pytest.mark.slow)])
def test_processes_that_end_at_once_all_end_well(runs: int) -> None:
    """jax aborts those that have no answer to their last message when the service is gone: half of
    such runs, where it was killed as soon as process 0 had its own.
    """
    for _ in range(runs):
        address = f"127.0.0.1:{free_port()}"
        results = finish(start_commands([[sys.executable, "-c", JOIN_AND_END, address, str(index)] for index in range(6)]))
        assert [status for status, _, _ in results] == [0] * 6, results
