"""Every kernel, forward and backward, through the real compilers for TPUs and GPUs, without a TPU
or a GPU.
"""

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
from mhsh.kernels.out_proj_residual_norm import JoinSettings, OutWeights, out_proj_residual_norm
from mhsh.kernels.residual_norm import Norm
from mhsh.kernels.rows import KernelTarget

key = jax.eval_shape(lambda: jax.random.key(0))

def array(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)

def kernels(target, batch, length, heads, head_dim, width, hidden, dtype, residual_dtype):
    x, context = array(batch, length, width, dtype=residual_dtype), array(batch, length, heads, head_dim, dtype=dtype)
    norm, segments = Norm(array(width), array(width), array(width)), array(batch, length, dtype=jnp.int32)
    weights = FeedForwardWeights(array(width, hidden), array(hidden), array(hidden, width), array(width))
    out_weights = OutWeights(array(heads, head_dim, width), array(width))
    one = KernelTarget(target=target)
    yield lambda key, *each: feed_forward(*each, key, FeedForwardSettings("gelu", 0.1, 1e-12, dtype), one), (x, weights, norm)
    join = JoinSettings(0.1, 1e-12, dtype)
    yield lambda key, *each: out_proj_residual_norm(*each, key, join, one), (x, context, out_weights, norm)
    attention = AttentionSettings(heads, True, 0.1)
    yield lambda key, q, k, v, segments: attend(q, k, v, segments, segments, key, attention, one), (*[context] * 3, segments)

def forward_and_backward(function, operands):
    def run(key, *operands):
        differentiable = [each for each in operands if getattr(each, "dtype", None) != jnp.int32]
        others = operands[len(differentiable):]
        value, backward = jax.vjp(lambda *each: function(key, *each, *others), *differentiable)
        return value, backward(value)

    return run, (key, *operands)

def compiled(device, function, operands):
    run, operands = forward_and_backward(function, operands)
    sharding = jax.sharding.SingleDeviceSharding(device)
    placed = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype, sharding=sharding), operands)
    return jax.jit(run).lower(*placed).compile().as_text()

bf16, fp32 = jnp.dtype("bfloat16"), jnp.dtype("float32")
shapes = [(16, 512, 1, 64, 1024, 256, bf16, fp32), (3, 200, 4, 64, 256, 64, fp32, fp32)]
"""

FOR_A_TPU = """
from mhsh.planning.aot import devices_of, parse_topology

device = devices_of(parse_topology(sys.argv[1]))[0]
texts = [compiled(device, *each) for shape in shapes for each in kernels("tpu", *shape)]
print(json.dumps([text.count('custom_call_target="tpu_custom_call"') for text in texts]))
"""

# As many heads and as wide a hidden layer as are multiplied before the kernels; a width that is no
# power of two.
FOR_A_GPU = """
from jax.experimental import topologies

options = dict(target_config=sys.argv[1], topology="1x1x1")
device = topologies.get_topology_desc(platform="cuda", topology_name="1x1x1", **options).devices[0]
shapes += [(2, 512, 16, 64, 768, 3072, bf16, bf16)]
texts = [compiled(device, *each) for shape in shapes for each in kernels("gpu", *shape)]
print(json.dumps([text.count('custom_call_target="__gpu$xla.gpu.triton"') for text in texts]))
"""

LOWERED_FOR_A_GPU = """
counts = []
for shape in shapes:
    for each in kernels("gpu", *shape):
        run, operands = forward_and_backward(*each)
        text = jax.jit(run).trace(*operands).lower(lowering_platforms=("cuda",)).as_text()
        counts.append(text.count("@__gpu$xla.gpu.triton("))
print(json.dumps(counts))
"""

# NVIDIA's published figures of an H200 (H200 datasheet; CUDA C programming guide, compute
# capability 9.0), in the form of XLA's GpuTargetConfigProto.
H200 = """
gpu_device_info {
  name: "NVIDIA H200" cuda_compute_capability { major: 9 minor: 0 } core_count: 132 clock_rate_ghz: 1.98
  threads_per_warp: 32 threads_per_block_limit: 1024 threads_per_core_limit: 2048
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 fpus_per_core: 128
  shared_memory_per_block: 49152 shared_memory_per_block_optin: 232448 shared_memory_per_core: 233472
  device_memory_size: 150000000000 memory_bandwidth: 4800000000000 l2_cache_size: 52428800
}
platform_name: "CUDA"
device_description_str: "NVIDIA H200"
dnn_version_info { major: 9 minor: 10 patch: 0 }
runtime_version { major: 13 minor: 0 patch: 0 }
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


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="libtpu is not installed (pip install libtpu, in an environment of its own)"
)
@pytest.mark.parametrize("topology", ["v5e:2x2", "v6e:2x2"])
def test_kernels_compile_for_a_tpu(topology):
    assert counts_of(FOR_A_TPU, topology) == [2] * 6, "one kernel forward, one backward, for each"


# A join is a kernel forward and one backward, a feed-forward sublayer as well; attention has two
# backward.
A_LAYER_ON_A_GPU = [2, 2, 3]


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None,
    reason="jax's CUDA plugin is not installed (pip install 'jax[cuda13]', in an environment of its own)",
)
def test_kernels_compile_for_an_h200():
    assert counts_of(FOR_A_GPU, H200) == A_LAYER_ON_A_GPU * 3


def test_kernels_are_taken_by_triton():
    """Down to Triton's own language, which jax writes wherever it runs: what it has no operation
    for shows here.
    """
    assert counts_of(LOWERED_FOR_A_GPU) == A_LAYER_ON_A_GPU * 2
