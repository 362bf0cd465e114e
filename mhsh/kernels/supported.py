"""What can be fused, and what not, in words for people: every question is answered by None (it can)
or one line why not.
"""

from __future__ import annotations

from mhsh.config.schema import ModelConfig
from mhsh.kernels import attention, feed_forward, out_proj_residual_norm
from mhsh.kernels.gpu.attention import WIDEST_HEAD
from mhsh.kernels.rows import MIB, ONCHIP_BYTES, Target, VmemBudget

FUSED_RESIDUALS = ("post_ln", "deepnorm", "admin")

# The least rows of a block with which the matrix units are worth their feeding, a side of the 128 x
# 128 array.
LEAST_ROWS = 128

# Kinds of TPU, as jax names them, of whose cores each has too little on-chip memory (jax's own
# table of TPUs, jax/_src/pallas/mosaic/tpu_info.py: 16 MiB a core for v2, v3, v4 and v4 lite; 64
# for v5p and v7; 128 for v5e and v6e). A kernel asks for its share itself: XLA's own default, 16
# MiB, binds only those that ask for none.
SMALL_KINDS = ("TPU v2", "TPU v3", "TPU v4", "TPU v4 lite")

# The GPUs, by a part of their names, for which the kernels were compiled: their tiles are cut to
# these chips' shared memory.
GPU_KINDS = ("H100", "H200", "GH200")


def unsupported_platform(platform: str, device_kind: str, num_tensor_shards: int) -> str | None:
    """Why no kernel at all runs on devices of this platform and kind, cut so many times along the
    mesh's axis `tensor`.

    `platform` is `tpu`, `gpu`, or `cpu`, where Pallas interprets the kernels: right, and far slower
    than the plain form.
    """
    if platform not in ("tpu", "gpu", "cpu"):
        return f"there are no fused kernels for {platform} yet"
    if platform == "gpu" and not any(kind in device_kind for kind in GPU_KINDS):
        return f"the fused kernels for GPUs are made for {', '.join(GPU_KINDS)}, not for {device_kind}"
    if device_kind in SMALL_KINDS:
        return f"a core of {device_kind} has less on-chip memory than the {ONCHIP_BYTES // MIB} MiB that the fused kernels take"
    if num_tensor_shards > 1:
        return f"mesh.tensor = {num_tensor_shards}: the fused kernels need the parameters of a layer whole on every device"
    return None


def unsupported_feed_forward(model: ModelConfig, target: Target) -> str | None:
    """Why the feed-forward sublayer of `model` cannot be fused with its join."""
    if model.mlp_dropout > 0.0:
        return f"model.mlp_dropout = {model.mlp_dropout}: the fused feed-forward sublayer has no dropout inside"
    if target == "gpu":
        return _unsupported_residual(model)  # what is too wide for a program is multiplied before it
    needed = feed_forward.onchip(model.embed_dim, model.mlp_dim, model.residual_dtype, model.compute_dtype)
    return _unsupported_residual(model) or _too_large(f"model.mlp_dim = {model.mlp_dim} is too wide", needed)


def unsupported_join(model: ModelConfig, target: Target) -> str | None:
    """Why the output projection of attention cannot be fused with its join."""
    if target == "gpu":
        return _unsupported_residual(model)
    width = model.num_heads * model.head_dim
    needed = out_proj_residual_norm.onchip(width, model.embed_dim, model.residual_dtype, model.compute_dtype)
    what = f"model.num_heads x model.head_dim = {model.num_heads} x {model.head_dim} is too wide"
    return _unsupported_residual(model) or _too_large(what, needed)


def unsupported_attention(model: ModelConfig, source_length: int, target: Target) -> str | None:
    """Why attention over `source_length` keys cannot be fused."""
    if target == "gpu":  # any length: keys come block by block
        wide = model.head_dim > WIDEST_HEAD
        return f"model.head_dim = {model.head_dim} is wider than {WIDEST_HEAD}, the most that fits a program" if wide else None
    needed = attention.onchip(source_length, model.num_heads * model.head_dim, model.compute_dtype)
    return _too_large(f"a row of {source_length} tokens is too long", needed)


def unsupported_batch(batch_size: int, num_shards: int) -> str | None:
    """Why a batch of so many rows cannot be cut for so many devices: unlike XLA's own cut, a
    kernel's is even.
    """
    return f"{batch_size} rows do not divide over {num_shards} devices" if batch_size % num_shards else None


def _unsupported_residual(model: ModelConfig) -> str | None:
    return None if model.residual in FUSED_RESIDUALS else f"model.residual = {model.residual} has no fused form"


def _too_large(what: str, needed: VmemBudget) -> str | None:
    if needed.block_rows() >= LEAST_ROWS:
        return None
    return f"{what} for the {ONCHIP_BYTES // MIB} MiB of on-chip memory that a fused kernel may take"
