"""The studies of docs/evidence.md: heads per layer, and how stable the residual schemes are.

A causal language model over bytes of English, small enough that each sweep fits into an hour of two
CPU cores. The fields that a sweep varies are given on its command line.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_config

# variant: the fields in which it differs from the base
VARIANTS = {
    # 24 heads in all; --axes heads_per_layer=8,4,2,1 makes 3, 6, 12 and 24 layers of them.
    "heads": dict(
        model=dict(num_layers=3, num_heads=8, head_dim=16),
        train=dict(num_steps=1200, eval_interval=100, eval_batches=32, checkpoint_interval=200),
    ),
    # One head a layer, its feed-forward part as narrow as regrouping makes it; --axes
    # depth=6,18,54.
    "stability": dict(
        model=dict(num_layers=3, num_heads=1, head_dim=16, embed_dim=64, mlp_dim=32, residual="post_ln"),
        optimizer=dict(warmup_steps=50),
        train=dict(batch_size=4, eval_interval=0, eval_batches=32, checkpoint_interval=0),
    ),
    # For `mhsh probe amplification`, which varies scheme and depth itself.
    "amplification": dict(
        model=dict(num_layers=48, num_heads=1, head_dim=8, embed_dim=64, mlp_dim=32),
        data=dict(sequence_length=16),
    ),
}


def get_config(variant: str) -> ConfigDict:
    """The config of one row of VARIANTS."""
    return make_config(find_variant(__file__, VARIANTS, variant))
