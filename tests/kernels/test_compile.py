"""Every kernel, forward and backward, through the real compiler for TPUs, without a TPU."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys

import pytest

from tests.conftest import ROOT

# Shapes of one layer of 384L1H (and several heads, and a batch that fills no block).
KERNELS = """
import json, sys
import jax, jax.numpy as jnp
from mhsh.kernels.attention import AttentionSettings, attend
from mhsh.kernels.feed_forward import FeedForwardSettings, FeedForwardWeights, feed_forward
from mhsh.kernels.out_proj_residual_norm import OutProjSettings, OutWeights, out_proj_residual_norm
from mhsh.kernels.residual_norm import NormParams

key = jax.eval_shape(lambda: jax.random.key(0))

def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)

def kernels(batch, length, heads, head_dim, width, hidden, dtype, residual_dtype):
    x, context = array(batch, length, width, dtype=residual_dtype), array(batch, length, heads, head_dim, dtype=dtype)
    norm, segments = NormParams(array(width), array(width), array(width)), array(batch, length, dtype=jnp.int32)
    weights = FeedForwardWeights(array(width, hidden), array(hidden), array(hidden, width), array(width))
    out_weights = OutWeights(array(heads, head_dim, width), array(width))
    yield lambda key, *each: feed_forward(*each, key, FeedForwardSettings("gelu", 0.1, 1e-12, dtype)), (x, weights, norm)
    out_proj = OutProjSettings(0.1, 1e-12, dtype)
    yield lambda key, *each: out_proj_residual_norm(*each, key, out_proj), (x, context, out_weights, norm)
    attention = AttentionSettings(heads, True, 0.1)
    yield lambda key, q, k, v, segments: attend(q, k, v, segments, segments, key, attention), (*[context] * 3, segments)

def forward_and_backward(function, operands):
    def run(key, *operands):
        differentiable = [each for each in operands if getattr(each, "dtype", None) != jnp.int32]
        others = operands[len(differentiable):]
        value, backward = jax.vjp(lambda *each: function(key, *each, *others), *differentiable)
        return value, backward(value)

    return run, (key, *operands)

def compiled(device, function, operands):
    run, operands = forward_and_backward(function, operands)
    with jax.set_mesh(jax.sharding.Mesh([device], "x", axis_types=(jax.sharding.AxisType.Auto,))):
        return jax.jit(run, in_shardings=jax.P()).lower(*operands).compile().as_text()

bf16, fp32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
shapes = [(16, 512, 1, 64, 1024, 256, bf16, fp32), (3, 200, 4, 64, 256, 64, fp32, fp32)]
"""

FOR_A_TPU = """
from mhsh.planning.aot import devices_of, parse_topology

device = devices_of(parse_topology(sys.argv[1]))[0]
texts = [compiled(device, *each) for shape in shapes for each in kernels(*shape)]
print(json.dumps([text.count('custom_call_target="tpu_custom_call"') for text in texts]))
"""


def counts_of(program: str, *arguments: str) -> list[int]:
    """What a program about the kernels prints at last: how many calls of kernels each sublayer
    became.
    """
    environment = os.environ | {"JAX_PLATFORMS": "cpu", "TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    done = subprocess.run(
        [sys.executable, "-c", KERNELS + program, *arguments],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=environment | {"PYTHONPATH": str(ROOT)},
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.tpu_compile
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None,
    reason="libtpu is not installed (pip install -e '.[tpu]')",
)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
def test_kernels_compile_for_a_tpu(topology):
    assert counts_of(FOR_A_TPU, topology) == [2] * 6, "one kernel forward, one backward, for each"
