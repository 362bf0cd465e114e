"""What is said of a model's kernels."""

from __future__ import annotations

import jax
import pytest

from mhsh.models.build import left_to_xla


@pytest.mark.parametrize("kernels", ["auto", "xla"])
def test_nothing_is_said_where_no_kernel_is_asked_for(tiny, kernels):
    assert left_to_xla(tiny(kernels=kernels)) == ""


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_xla_computes_everything(tiny):
    said = f"the device is a {jax.default_backend().upper()} and no NVIDIA GPU"
    assert left_to_xla(tiny(kernels="fused")) == f"model.kernels = fused: XLA computes everything, as {said}"
