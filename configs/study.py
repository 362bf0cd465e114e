"""The models of the study "heads or depth?" (launch/study): three sizes, causal and masked.

A language model over bytes of English with heads of width 16. `launch/study` names the axes of each
stage, and docs/evidence.md shows what came out.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from configs.base import find_variant, make_config

# size: its model before heads are grouped. In all 12, 24 and 48 heads, in 3 layers.
SIZES: dict[str, dict[str, Any]] = {
    "small": dict(num_layers=3, num_heads=4, embed_dim=64, mlp_dim=256),
    "base": dict(num_layers=3, num_heads=8, embed_dim=128, mlp_dim=512),
    "large": dict(num_layers=3, num_heads=16, embed_dim=256, mlp_dim=1024),
}
OBJECTIVES: dict[str, dict[str, Any]] = {
    "causal": dict(model=dict(objective="clm")),
    "masked": dict(model=dict(objective="mlm"), data=dict(max_predictions=20, mask_fraction=0.15)),
}
RECIPE = dict(
    model=dict(head_dim=16),
    train=dict(num_steps=400, eval_interval=100, eval_batches=32, checkpoint_interval=200),
)
VARIANTS = {f"{size}_{objective}": (size, objective) for size in SIZES for objective in OBJECTIVES}


def get_config(variant: str) -> ConfigDict:
    """The config of a size and an objective, such as base_causal."""
    size, objective = find_variant(__file__, VARIANTS, variant)
    return make_config(RECIPE, dict(model=SIZES[size]), OBJECTIVES[objective])
