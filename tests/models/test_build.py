"""What is said of a model's kernels."""

from __future__ import annotations

import jax
import pytest

from mhsh.models.build import describe_fallbacks
from mhsh.models.kernels.select import allow_interpreter
from mhsh.models.schemes import PostLN

COVERED = dict(kernels="fused", embed_dim=128, head_dim=64)


@pytest.mark.parametrize("kernels", ["auto", "xla"])
def test_nothing_is_said_where_no_kernel_is_asked_for(tiny, kernels):
    assert describe_fallbacks(tiny(kernels=kernels)) == ""


@pytest.mark.skipif(jax.default_backend() == "gpu", reason="there is a GPU")
def test_without_a_gpu_xla_computes_everything(tiny):
    said = f"the device is a {jax.default_backend().upper()} and no NVIDIA GPU"
    assert describe_fallbacks(tiny(kernels="fused")) == f"model.kernels = fused: XLA computes everything, as {said}"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, ""),
        ({"embed_dim": 12}, "sums with the stream, as model.embed_dim = 12 is no multiple of 128 up to 4096"),
        ({"residual": "keel"}, "sums with the stream, as model.residual = keel has no kernel"),
        (
            {"residual": "pre_ln", "remat_policy": "gathered_groups"},
            "sums with the stream, as model.remat_policy = gathered_groups hands no seeds on",
        ),
        ({"head_dim": 256}, "attention, as model.head_dim = 256 is above 128"),
    ],
)
def test_what_kernels_do_not_cover_is_said(tiny, fields, said):
    with allow_interpreter():
        line = describe_fallbacks(tiny(**COVERED | fields))
    assert line == (f"model.kernels = fused: XLA computes {said}" if said else "")


def test_a_scheme_derived_from_one_with_kernels_has_none_itself(tiny):
    class Mine(PostLN):
        """Its own sum."""

    assert not PostLN.kernel_obstacle(tiny(**COVERED))
    assert Mine.kernel_obstacle(tiny(**COVERED)) == "model.residual = post_ln has no kernel"
