"""The coordination service beside process 0, at the end of a run."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys

import pytest

from mhsh.cluster import coordination
from mhsh.cluster.coordination import PRIVATE, _private_object
from tests.clusters import finish, free_port
from tests.forks import Fork

JOIN_AND_END = """
import sys
from mhsh.cluster.agreement import is_same_everywhere
from mhsh.cluster.peers import join
with join(coordinator=sys.argv[1], num_processes=int(sys.argv[3]), process_id=int(sys.argv[2])):
    assert is_same_everywhere("one", "value") and not is_same_everywhere("other", str(sys.argv[2] == "1"))
"""


@pytest.mark.parametrize(("runs", "count"), [(1, 3), pytest.param(30, 6, marks=pytest.mark.slow)])
def test_processes_that_end_at_once_all_end_well(runs: int, count: int) -> None:
    """jax aborts those that have no answer to their last message when the service is gone: half of
    such runs, where it was killed as soon as process 0 had its own.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    for _ in range(runs):
        address = f"127.0.0.1:{free_port()}"
        program = [sys.executable, "-c", JOIN_AND_END, address]
        processes = [
            subprocess.Popen([*program, str(index), str(count)], env=environment, stdout=-1, stderr=-1, text=True)
            for index in range(count)
        ]
        results = finish(processes)
        assert [status for status, _, _ in results] == [0] * count, results


def test_the_processes_of_a_cluster_are_found(monkeypatch) -> None:
    """By what Slurm tells them, though no address is given."""
    script = re.sub(r"join\(.*\)", "join(coordinator=None, num_processes=None, process_id=None)", JOIN_AND_END)
    for name, value in {
        **{"SLURM_JOB_ID": "1", "SLURM_STEP_NODELIST": "127.0.0.1", "SLURM_NTASKS": "2", "JAX_COORDINATOR_PORT": str(free_port())},
        "JAX_LOCAL_DEVICE_IDS": "0",
    }.items():
        monkeypatch.setenv(name, value)
    processes = [
        Fork(
            ["-c", f"import sys; sys.argv = ['', '', '{index}']\n{script}"],
            os.environ | {"SLURM_PROCID": str(index), "SLURM_LOCALID": str(index)},
        )
        for index in range(2)
    ]
    assert [status for status, _, _ in finish(processes)] == [0, 0]


@pytest.mark.parametrize("index", range(len(PRIVATE)))
def test_a_jax_without_a_private_name_is_named(monkeypatch, index: int) -> None:
    """Both are there in the jax that is tested; no other private name of jax is used."""
    module, name = PRIVATE[index]
    monkeypatch.delattr(importlib.import_module(module), name)
    with pytest.raises(RuntimeError, match=rf"this jax has no {module}\.{name}; install one .*, jax>=0.10.1,<0.13"):
        _private_object(index)


def test_a_service_whose_process_has_gone_meanwhile_ends_without_a_word() -> None:
    read, write = os.pipe()
    os.close(read)
    command = [sys.executable, "-P", coordination.__file__, f"127.0.0.1:{free_port()}", "2"]
    environment = os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3"}
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=write, stderr=subprocess.PIPE, env=environment, check=False)
    os.close(write)
    assert (ended.returncode, ended.stderr) == (0, b"")
