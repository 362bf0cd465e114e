"""The default training step of every shipped shape, through the real compiler for TPUs."""

from __future__ import annotations

import importlib.util

import pytest

from benchmarks import tpu_matrix
from mhsh.planning.compiled import measure, parse_topology

LIBTPU = importlib.util.find_spec("libtpu") is not None
STEPS = list(tpu_matrix.steps()) if LIBTPU else []


@pytest.mark.tpu_compile
@pytest.mark.skipif(not LIBTPU, reason="libtpu is not installed (pip install -e '.[tpu]')")
@pytest.mark.parametrize(("config", "topology"), [pytest.param(*what, id=step) for step, *what in STEPS])
def test_it_compiles_and_fits(config, topology):
    report = measure(config, parse_topology(topology))
    assert report["fits"], report.get("compiler")
