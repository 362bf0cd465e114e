"""Every kernel, forward and backward, through the real TPU compiler, without a TPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Shapes of one layer of 384L1H (and several heads, and a batch that fills no block).
PROGRAM = """
import json, sys
import jax, jax.numpy as jnp
from mhsh.kernels.attention import AttentionSettings, attend
from mhsh.kernels.feed_forward import FeedForwardSettings, FeedForwardWeights, feed_forward
from mhsh.kernels.join import JoinSettings, OutWeights, project_and_join
from mhsh.kernels.residual_norm import Norm
from mhsh.kernels.rows import Place
from mhsh.training.aot import devices_of, parse_topology

device = devices_of(parse_topology(sys.argv[1]))[0]
sharding = jax.sharding.SingleDeviceSharding(device)
key = jax.eval_shape(lambda: jax.random.key(0))

def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)

def kernels(batch, length, heads, head_dim, width, hidden, dtype, residual_dtype):
    x, context = array(batch, length, width, dtype=residual_dtype), array(batch, length, heads, head_dim, dtype=dtype)
    norm, segments = Norm(array(width), array(width), array(width)), array(batch, length, dtype=jnp.int32)
    weights = FeedForwardWeights(array(width, hidden), array(hidden), array(hidden, width), array(width))
    out_weights = OutWeights(array(heads, head_dim, width), array(width))
    one = Place()
    yield lambda key, *each: feed_forward(*each, key, FeedForwardSettings("gelu", 0.1, 1e-12, dtype), one), (x, weights, norm)
    join = JoinSettings(0.1, 1e-12, dtype)
    yield lambda key, *each: project_and_join(*each, key, join, one), (x, context, out_weights, norm)
    attention = AttentionSettings(heads, True, 0.1)
    yield lambda key, q, k, v, segments: attend(q, k, v, segments, segments, key, attention, one), (*[context] * 3, segments)

def compiled_calls(function, operands):
    def run(key, *operands):
        differentiable = [each for each in operands if getattr(each, "dtype", None) != jnp.int32]
        others = operands[len(differentiable):]
        value, backward = jax.vjp(lambda *each: function(key, *each, *others), *differentiable)
        return value, backward(value)

    placed = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding), (key, *operands))
    return jax.jit(run).lower(*placed).compile().as_text().count('custom_call_target="tpu_custom_call"')

bf16, fp32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
shapes = [(16, 512, 1, 64, 1024, 256, bf16, fp32), (3, 200, 4, 64, 256, 64, fp32, fp32)]
print(json.dumps([compiled_calls(*each) for shape in shapes for each in kernels(*shape)]))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (pip install libtpu, in an environment of its own)"
)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
def test_kernels_compile_for_a_tpu(topology):
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, topology],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == [2] * 6, "one kernel forward, one backward, for each"
