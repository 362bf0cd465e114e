"""The average of a run's last checkpoints: parameters that stand nearer to the middle of where
training moves about.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mhsh.errors import UserError
from mhsh.training.checkpoint import Checkpoints


def newest_steps(checkpoints: Checkpoints, count: int, step: int | None) -> list[int]:
    """The newest `count` steps that are kept, newest first; with `step`, that one and those before
    it.

    Raises:
      UserError: there are not so many, or `step` is not among them.
    """
    newest = checkpoints.existing_step(step)
    kept = [there for there in checkpoints.steps() if there <= newest]
    if not 1 <= count <= len(kept):
        named = ", ".join(map(str, sorted(kept)))
        raise UserError(
            f"{count} checkpoints cannot be averaged: up to step {newest} there are {len(kept)} ({named}); "
            f"average 1 to {len(kept)}, or train with a larger train.keep_checkpoints"
        )
    return kept[:count]


def average(checkpoints: Checkpoints, steps: Sequence[int], abstract_params: Any) -> Any:
    """The mean of the parameters of `steps`, each array in its own dtype, laid out as
    `abstract_params` says.

    Source: the averaging of Vaswani et al. 2017, section 6.1. A running mean in fp32, so that
    beside it only one checkpoint is in memory at a time.

    Raises:
      UserError: as `Checkpoints.restore_params`.
    """
    mean = _in_fp32(checkpoints.restore_params(steps[0], abstract_params))
    for number, step in enumerate(steps[1:], 2):
        mean = _towards(mean, checkpoints.restore_params(step, abstract_params), jnp.float32(number))
    return jax.tree.map(lambda leaf, wanted: leaf.astype(wanted.dtype), mean, abstract_params)


def _in_fp32(params: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(jnp.float32), params)


@functools.partial(jax.jit, donate_argnums=0)
def _towards(mean: Any, params: Any, number: jax.Array) -> Any:
    """The mean of `number` parameters from that of all but the last, and the last."""
    return jax.tree.map(lambda m, leaf: m + (leaf.astype(jnp.float32) - m) / number, mean, params)
