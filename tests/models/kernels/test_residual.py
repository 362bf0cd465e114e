"""The kernels around a sublayer, interpreted, against the same formula by XLA."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.models.dropout import dropout
from mhsh.models.kernels.residual import add_and_norm, join_obstacle, widest
from mhsh.models.kernels.rows import mosaic_obstacle
from mhsh.models.kernels.select import allow_interpreter
from mhsh.models.layers import normalize
from mhsh.models.sublayer import Branch
from mhsh.training.sharding import put_batch
from tests.models.kernels.compiled import BY_EACH_COMPILER, NO_COMPILER, registers
from tests.training.batches import random_batch
from tests.training.states import fresh_state, mesh_of, train_step_of
from tests.training.test_step import assert_close

SEED = jnp.array([7, 11], jnp.uint32)


def by_formula(config: Any, x: Any, read: Any, product: Any, vectors: Any, normed_stream: bool) -> tuple[Any, Any]:
    """What XLA's path computes. The gradient of the weight is taken of `read`."""
    bias, scale, shift, weight = vectors
    out = dropout(product + bias.astype(product.dtype), config.hidden_dropout, SEED).astype(jnp.float32)
    held = jax.lax.stop_gradient(read.astype(jnp.float32))
    s = jax.lax.stop_gradient(weight) * x + weight * held - jax.lax.stop_gradient(weight * held) + out
    y = normalize(s, config.layer_norm_epsilon, config.norm == "layer")[0] * scale + shift
    return (y if normed_stream else s).astype(config.residual_dtype), y.astype(config.compute_dtype)


def by_kernel(config: Any, x: Any, read: Any, product: Any, vectors: Any, normed_stream: bool) -> tuple[Any, Any]:
    bias, scale, shift, weight = vectors
    branch = Branch(product, bias.astype(product.dtype), SEED)
    weight = weight if normed_stream else 1.0
    return add_and_norm(config, x, read, branch, scale, shift, weight, normed_stream=normed_stream)


CASES = {
    "omega": dict(),
    "before_the_sum": dict(normed_stream=False),
    "padded_columns_and_odd_rows": dict(width=384, shape=(3, 7)),
    "rms_norm": dict(norm="rms", hidden_dropout=0.0),
    "bfloat16_copy": dict(compute_dtype="bfloat16", shape=(2, 16)),
    "bfloat16_before_the_sum": dict(compute_dtype="bfloat16", normed_stream=False, width=640),
}


@pytest.mark.parametrize("kernels", ["fused", "mosaic"])
@pytest.mark.parametrize("case", CASES)
def test_values_and_all_gradients(tiny, error, case, kernels):
    fields = {"width": 128, "shape": (2, 8), "normed_stream": True, "hidden_dropout": 0.1, **CASES[case]}
    width, shape, normed_stream = (fields.pop(name) for name in ("width", "shape", "normed_stream"))
    config = tiny(embed_dim=width, kernels=kernels, **fields)
    rng = np.random.default_rng(0)
    x, of_stream, of_copy, product = (jnp.asarray(rng.standard_normal((*shape, width)), jnp.float32) for _ in range(4))
    product, of_copy, read = (each.astype(config.compute_dtype) for each in (product, of_copy, x))
    vectors = jnp.asarray(rng.standard_normal((4, width)), jnp.float32)
    if not normed_stream:
        vectors = vectors.at[3].set(1.0)

    def both(path: Any) -> Any:
        def run(x: Any, read: Any, product: Any, vectors: Any, gradients: Any) -> Any:
            out, pull = jax.vjp(lambda *args: path(config, args[0], read, args[1], args[2], normed_stream), x, product, vectors)
            if not normed_stream or config.compute_dtype != config.residual_dtype:
                return out, pull(gradients)
            return out[0], pull((gradients[0], jnp.zeros_like(gradients[1])))

        with allow_interpreter():
            return jax.jit(run)(x, read, product, vectors, (of_stream, of_copy))

    out, (of_x, of_product, of_vectors) = both(by_kernel)
    expected, (exact_x, exact_product, exact_vectors) = both(by_formula)
    if not normed_stream:
        of_vectors, exact_vectors = of_vectors[:3], exact_vectors[:3]
    close = 1e-5 if config.compute_dtype == "float32" else 2e-2
    assert error((out, of_x, of_product), (expected, exact_x, exact_product)) < close
    assert max(error(one, other) for one, other in zip(of_vectors, exact_vectors, strict=True)) < close
    if config.hidden_dropout:
        kept = dropout(jnp.ones((*shape, width)), config.hidden_dropout, SEED) != 0
        np.testing.assert_array_equal(of_product != 0, kept)


def test_what_mosaic_needs(monkeypatch):
    a100 = SimpleNamespace(compute_capability="8.0", device_kind="NVIDIA A100")  # as jax describes a GPU
    monkeypatch.setattr("mhsh.models.kernels.rows.jax.devices", lambda: [a100])
    monkeypatch.setattr("mhsh.models.kernels.rows.HAS_MOSAIC", True)
    assert mosaic_obstacle() == "Mosaic GPU needs an H100 or later, and this is an NVIDIA A100"
    monkeypatch.setattr("mhsh.models.kernels.rows.HAS_MOSAIC", False)
    assert mosaic_obstacle() == f"Mosaic GPU needs jax 0.11.1, and this is {jax.__version__}"


def test_widths_that_are_not_covered(tiny):
    assert [width for width in (64, 128, 200, 384, 4096, 8192) if not join_obstacle(tiny(embed_dim=width))] == [128, 384, 4096]
    assert join_obstacle(tiny(kernels="mosaic", embed_dim=4096)) == "model.embed_dim = 4096 is no multiple of 128 up to 1536"
    assert join_obstacle(tiny(embed_dim=200)) == "model.embed_dim = 200 is no multiple of 128 up to 4096"


@pytest.mark.parametrize(("residual", "shape"), [("admin", (2, 1, 1)), pytest.param("pre_ln", (1, 1, 1), marks=pytest.mark.slow)])
def test_a_whole_step(make_config, residual, shape):
    """In fp32, on one device and on shards of the batch, whose masks are those of the whole."""
    overrides = {
        "model.residual": residual,
        "model.embed_dim": 128,
        "model.num_layers": 2,
        "model.hidden_dropout": 0.1,
        "model.remat_policy": "projections",
        "model.compute_dtype": "float32",
        "data.sequence_length": 16,
        "data.max_predictions": 4,
        "train.batch_size": 4,
    }
    after = {}
    for kernels in ("xla", "fused", "mosaic"):
        config = make_config("bert", "2l8h", **overrides, **{"model.kernels": kernels})
        with allow_interpreter():
            step = train_step_of(config, shape, sgd=True)
        batch = put_batch(random_batch(config, config.train.batch_size), mesh_of(*shape))
        state, (sums, *_) = step(fresh_state(config, shape, sgd=True), batch)
        after[kernels] = jax.device_get((state.params, {name: float(each.value()) for name, each in sums.items()}))
    for kernels in ("fused", "mosaic"):
        assert_close(after[kernels], after["xla"], 1e-5)


@pytest.mark.gpu_compile
@pytest.mark.skipif(NO_COMPILER, reason="XLA's CUDA plugin is not installed (pip install -e '.[gpu-compile]')")
@pytest.mark.parametrize("width", [128, 768, 1024, 4096])
@pytest.mark.parametrize("normed_stream", [True, False])
@BY_EACH_COMPILER
def test_no_register_is_spilled(tiny, width, normed_stream, kernels):
    width = min(width, widest(kernels))
    config = tiny(embed_dim=width, kernels=kernels, hidden_dropout=0.1, compute_dtype="bfloat16")
    x, low = (jax.ShapeDtypeStruct((16, 128, width), dtype) for dtype in ("float32", "bfloat16"))
    vectors = jax.ShapeDtypeStruct((4, width), "float32")

    def both_ways(x: Any, read: Any, product: Any, vectors: Any, gradients: Any) -> Any:
        path = lambda *args: by_kernel(config, args[0], read, args[1], args[2], normed_stream)  # noqa: E731
        out, pull = jax.vjp(path, x, product, vectors)
        return out, pull(gradients)

    used = registers(both_ways, x, low, low, vectors, (x, low))
    assert set(used) == {"residual_forward", "residual_backward"}
    assert all(spilled == 0 for _, spilled in used.values()), used
