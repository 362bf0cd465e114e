"""What the tests of all kernels share: random arrays, errors, and a mesh of simulated devices."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh

from mhsh.kernels.residual_norm import Norm
from mhsh.kernels.rows import KernelTarget, Target

ALONE = KernelTarget(interpret=True)
TARGETS = ("tpu", "gpu")  # whose kernels; here both are interpreted
ALLOWED = {"float32": 1e-5, "bfloat16": 1e-2}


def alone(target: Target) -> KernelTarget:
    """One device."""
    return dataclasses.replace(ALONE, target=target)


def place_of(data: int, fsdp: int, target: Target = "tpu") -> KernelTarget:
    """data x fsdp simulated devices, the kernels interpreted."""
    devices = np.asarray(jax.devices()[: data * fsdp]).reshape(data, fsdp, 1)
    mesh = Mesh(devices, ("data", "fsdp", "tensor"), axis_types=(AxisType.Auto,) * 3)
    return KernelTarget(mesh, ("data", "fsdp"), interpret=True, target=target)


def normals(seed: int):
    """normals(0)(3, 4, scale=2.0): an fp32 array of deviation 2, another one at each call. All are
    numbers that bf16 has as well: what is compared in bf16 is the arithmetic, not the rounding of
    what goes into it.
    """
    generator = np.random.default_rng(seed)
    return lambda *shape, scale=1.0: jnp.asarray(scale * generator.standard_normal(shape), jnp.bfloat16).astype(jnp.float32)


def norm_of(draw, width: int, omega: float) -> Norm:
    """Parameters of a join, omega spread around `omega`."""
    return Norm(omega + draw(width, scale=0.1), 1.0 + draw(width, scale=0.1), draw(width))


def relative_error(found, expected) -> float:
    """max |found - expected| / max |expected|, or the largest |found| where all that is expected is
    0.
    """
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert found.shape == expected.shape
    return float(np.abs(found - expected).max() / (np.abs(expected).max() or 1.0))


def value_and_gradients(function, operands, gradient):
    """What `function(*operands)` is, and the gradients by all leaves of its operands of its product
    with `gradient`.
    """

    @jax.jit  # one compilation for all of it
    def run(operands, gradient):
        value, backward = jax.vjp(function, *operands)
        return [value, *jax.tree.leaves(backward(gradient.astype(value.dtype)))]

    return run(operands, gradient)


def largest_error(found, expected) -> float:
    """The largest relative error of two lists of arrays."""
    return max(relative_error(*pair) for pair in zip(found, expected, strict=True))


def in_float32(tree):
    """A tree with its bf16 leaves widened."""
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), tree)
