"""What devices exchange in a step: how often, in which dtype, and that it is the sum."""

from __future__ import annotations

import re
from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mhsh.models.build import build_model, forward
from mhsh.models.parameters import parameter_path
from mhsh.planning.hlo import parse_module, read_collectives
from mhsh.training import shards
from mhsh.training.sharding import shardings_of
from mhsh.training.shards import cast_kernels, manual_specs, map_shards, psum_gradients
from tests.training.batches import random_batch
from tests.training.states import abstract_of, fresh_state, mesh_of, train_step_of

ROWS_OF_BATCH = np.arange(1.0, 9.0, dtype=np.float32)
MATRICES = 9  # six of a layer, the token table, the heads' two


@pytest.mark.parametrize(
    ("shape", "most"),
    [
        ((8, 1, 1), {"all-reduce": 4}),
        pytest.param((1, 8, 1), {"all-gather": MATRICES, "reduce-scatter": MATRICES, "all-reduce": 4}, marks=pytest.mark.slow),
        ((2, 4, 1), {"all-gather": MATRICES, "reduce-scatter": MATRICES, "all-reduce": 6}),
    ],
)
def test_a_step_of_a_deep_model_has_few_collectives(make_config, shape, most):
    found: Counter[str] = Counter()
    module = parse_module(train_step_of(make_config("bert", "16l1h"), shape).func.as_text() or "")
    for each in read_collectives(module, 8)[0]:
        found[each.kind] += each.count
    assert found.keys() == most.keys()
    assert all(found[kind] <= count for kind, count in most.items()), found


def test_no_device_has_all_weights_where_groups_are_gathered(make_config):
    """A group of four layers at once, in the forward pass and in the backward pass; each pass
    gathers its first group before it, and one too many.
    """
    config = make_config("bert", "16l1h", **{"model.remat_policy": "gathered_groups"})
    collectives, _ = read_collectives(parse_module(train_step_of(config, (1, 8, 1)).func.as_text() or ""), 8)
    shapes = abstract_of(config).params
    kernels, others = 0, 0
    for path, leaf in jax.tree_util.tree_leaves_with_path(shapes):
        is_kernel = "layers" in parameter_path(path) and leaf.ndim > 2
        kernels, others = kernels + 4 * leaf.size * is_kernel, others + 4 * leaf.size * (not is_kernel)
    gathered, scattered = ([one for one in collectives if one.kind == kind] for kind in ("all-gather", "reduce-scatter"))
    assert max(one.payload for one in gathered) <= max(kernels / 4, others), "never all layers"
    assert 2 * 5 / 4 * kernels < sum(one.bytes for one in gathered) < 2 * 5 / 4 * kernels + others
    assert kernels < sum(one.bytes for one in scattered) < kernels + others


def scaled_by_rows(config, shape):
    """A lowered function: as gradients, each parameter times the sum of `rows` of the batch."""

    def gradients(params, batch):
        return psum_gradients(
            jax.tree.map(lambda leaf: leaf.astype(jnp.float32) * jnp.sum(batch["rows"]), params),
            config.model,
            config.train.gradient_dtype,
        )

    mesh, params = mesh_of(*shape), abstract_of(config, shape).params
    with jax.set_mesh(mesh):
        sharded = map_shards(gradients, config.model, manual_specs(config.model))
        return jax.jit(sharded, in_shardings=(shardings_of(params), None)).lower(params, {"rows": ROWS_OF_BATCH})


@pytest.mark.parametrize("gradient_dtype", ["compute", "float32"])
def test_kernels_travel_in_their_dtype(make_config, gradient_dtype):
    """Before it is compiled: the CPU's compiler sums everything in fp32."""
    config = make_config("bert", "2l8h", **{"model.compute_dtype": "bfloat16", "train.gradient_dtype": gradient_dtype})
    text = scaled_by_rows(config, (1, 8, 1)).as_text()

    def dtypes(name):
        results = re.findall(rf"stablehlo\.{name}.*?-> tensor<(?:\d+x)+(\w+)>", text, re.DOTALL)
        return Counter(results)

    kernels = {"bf16": MATRICES - 1, "f32": 1}  # the token table is looked up in fp32
    assert dtypes("all_gather") == kernels
    assert dtypes("reduce_scatter") == (kernels if gradient_dtype == "compute" else {"f32": MATRICES})


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize(
    ("shape", "layers"),
    [((1, 8, 1), 8), ((1, 8, 1), 3), ((2, 4, 1), 3), ((8, 1, 1), 3)],
)
def test_gradients_are_added_up_over_all_shards(make_config, monkeypatch, shape, layers, platform):
    """Along whichever axis they are sharded, in one stage or, as on a TPU, in two."""
    monkeypatch.setattr(shards, "current_platform", lambda: platform)
    config = make_config("bert", "2l8h", **{"model.num_layers": layers})
    start = fresh_state(config, shape).params
    found = scaled_by_rows(config, shape).compile()(start, {"rows": ROWS_OF_BATCH})
    for (path, leaf), each in zip(jax.tree_util.tree_leaves_with_path(start), jax.tree.leaves(found), strict=True):
        np.testing.assert_allclose(each, np.asarray(leaf) * ROWS_OF_BATCH.sum(), rtol=1e-6, err_msg=parameter_path(path))


@pytest.mark.parametrize(
    ("task", "variant", "residual"),
    [("bert", "2l8h", "pre_ln"), pytest.param("translation", "tiny", "admin", marks=pytest.mark.slow)],
)
def test_kernels_are_used_in_compute_dtype_alone(make_config, task, variant, residual):
    """So gathering them in it changes nothing, where XLA may not leave their rounding out."""
    config = make_config(task, variant, **{"model.compute_dtype": "bfloat16", "model.residual": residual})
    params, batch = fresh_state(config).params, random_batch(config, config.train.batch_size)
    exact = {"xla_allow_excess_precision": False}
    run = jax.jit(lambda params: forward(build_model(config.model), params, batch, None), compiler_options=exact)
    rounded = cast_kernels(config.model, params)
    assert Counter(str(leaf.dtype) for leaf in jax.tree.leaves(rounded))["bfloat16"] >= MATRICES - 1
    jax.tree.map(np.testing.assert_array_equal, run(rounded), run(params))
