"""Position tables: learned, or the fixed sines and cosines of Vaswani et al. 2017."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from flax import linen as nn
from jaxtyping import Array, Float

from mhsh.config.schema import ModelConfig
from mhsh.models.layers import embedding_init

LONGEST_WAVELENGTH = 10_000.0  # over 2 pi, in positions


def position_table(module: nn.Module, name: str, config: ModelConfig) -> Float[Array, "T D"]:
    """One vector for each of the T = max_positions: the parameter `name` of `module`, or the
    sinusoids, which have none.
    """
    if config.positions == "sinusoidal":
        return jnp.asarray(sinusoids(config.max_positions, config.embed_dim))
    # Read by every device: only its width is ever sharded.
    init = embedding_init(config, ("positions", "embed"))
    return module.param(name, init, (config.max_positions, config.embed_dim))


def sinusoids(num_positions: int, width: int) -> Float[np.ndarray, "T D"]:
    """sin(t / 10000^(2i/D)) and cos of the same, i = 0 ... D/2 - 1 (Vaswani et al. 2017, section
    3.5).

    Concatenated, all sines before all cosines; the paper interleaves them, which is another order
    of the same columns.
    """
    frequencies = LONGEST_WAVELENGTH ** (-np.arange(0, width, 2) / width)
    angles = np.arange(num_positions)[:, None] * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1)[:, :width].astype(np.float32)
