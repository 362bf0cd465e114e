"""The scan with a backward pass of its own, in Pallas's interpreter, against XLA's path."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen as nn

from mhsh.config.entries import SCHEMES
from mhsh.models import scan
from mhsh.models.kernels.residual import widest
from mhsh.models.kernels.select import allow_interpreter
from mhsh.models.transformer import Encoder
from tests.models.kernels.compiled import BY_EACH_COMPILER, NO_COMPILER, registers

CASES = {
    "admin": dict(residual="admin", mlp_dropout=0.1, attention_dropout=0.1, hidden_dropout=0.1),
    "deepnorm": dict(residual="deepnorm", objective="clm", positions="rotary", mlp="gated", num_kv_heads=1, scan_unroll=3),
}


def gradients(tiny: Any, case: str, kernels: str, dtype: str) -> Any:
    """The output, the gradients of the parameters and of the input, and the output of a pass that
    is not differentiated.
    """
    fields = dict(embed_dim=128, num_layers=4, num_heads=2, scan_unroll=2, remat_policy="projections") | CASES[case]
    config = tiny(kernels=kernels, compute_dtype=dtype, residual_dtype=dtype, **fields)
    encoder = Encoder(config, SCHEMES[config.residual].residual)
    x = jax.random.normal(jax.random.key(0), (2, 8, 128)).astype(dtype)
    segmentation = jnp.asarray([[1] * 5 + [2] * 3, [1] * 6 + [0] * 2])
    positions, key = jnp.broadcast_to(jnp.arange(8), (2, 8)), jax.random.key(2)
    params = nn.unbox(encoder.init(jax.random.key(1), x, segmentation, None, positions))["params"]
    params = jax.tree.map(lambda leaf: leaf + 0.1 * jax.random.normal(jax.random.key(leaf.size), leaf.shape), params)

    def output(params: Any, x: Any) -> Any:
        out = encoder.apply({"params": params}, x, segmentation, key, positions)
        return jnp.where(segmentation[:, :, None] > 0, out, 0)  # the paths differ at padding

    def run(params: Any, x: Any) -> Any:
        out, pull = jax.vjp(output, params, x)
        of_params, of_x = pull(jnp.cos(jnp.arange(out.size)).reshape(out.shape).astype(out.dtype))
        return out, of_params, of_x, output(params, x)

    with allow_interpreter():
        assert scan.covers(config, encoder.residual) == (kernels != "xla")
        return jax.jit(run)(params, x)


@pytest.mark.parametrize("case", CASES)
def test_values_and_all_gradients(tiny, error, case):
    """Two iterations of two layers; and four, as three do not divide them."""
    exact = gradients(tiny, case, "xla", "float32")
    found = gradients(tiny, case, "fused", "float32")
    np.testing.assert_array_equal(found[0], found[3])
    for each in (found, gradients(tiny, case, "mosaic", "float32")):  # interpreted, its two passes are rounded apart
        assert error(each, exact) < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_in_bfloat16_it_is_as_near_to_the_exact_gradients(tiny, case):
    """All leaves as one vector: a gradient of a key's bias may be rounding alone."""
    hows = ("xla", "float32"), ("xla", "bfloat16"), ("fused", "bfloat16")
    exact, xla, fused = (np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradients(tiny, case, *how))]) for how in hows)

    def distance(found: np.ndarray) -> float:
        return float(np.linalg.norm(np.float32(found) - exact) / np.linalg.norm(exact))

    assert distance(fused) < 1.2 * distance(xla) < 0.12


@pytest.mark.gpu_compile
@pytest.mark.skipif(NO_COMPILER, reason="XLA's CUDA plugin is not installed (pip install -e '.[gpu-compile]')")
@pytest.mark.parametrize("width", [768, 1024, 4096])
@BY_EACH_COMPILER
def test_no_register_is_spilled(tiny, width, kernels):
    width = min(width, widest(kernels))
    config = tiny(
        kernels=kernels, embed_dim=width, residual="admin", remat_policy="projections", compute_dtype="bfloat16", hidden_dropout=0.1
    )
    encoder = Encoder(config, SCHEMES["admin"].residual)
    x, segmentation = jax.ShapeDtypeStruct((16, 128, width), "float32"), jax.ShapeDtypeStruct((16, 128), "int32")
    params = nn.unbox(jax.eval_shape(lambda *args: encoder.init(jax.random.key(1), *args, None), x, segmentation))["params"]

    def loss(params: Any, x: Any, segmentation: Any) -> Any:
        return encoder.apply({"params": params}, x, segmentation, jax.random.key(2)).sum()

    used = registers(jax.grad(loss), params, x, segmentation)
    assert {"residual_forward", "residual_backward"} <= used.keys()
    assert all(spilled == 0 for _, spilled in used.values()), used
