"""The comparison of `bash launch/quickstart`: minutes on two CPU cores.

A causal language model over bytes of English, shallow multi-head against deep single-head. All
variants have the same 24 heads of width 32, the same data order, hyper-parameters and seed. Only
`model.residual` and `model.heads_per_layer` differ. Hardware, time and result: docs/quickstart.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_config

# variant: (heads per layer, residual scheme)
VARIANTS = {
    "6l4h_post_ln": (4, "post_ln"),
    "24l1h_post_ln": (1, "post_ln"),
    "24l1h_admin": (1, "admin"),
    "24l1h_pre_ln": (1, "pre_ln"),
}


def get_config(variant: str) -> ConfigDict:
    """The config of one row of VARIANTS; all else is the schema's default."""
    heads_per_layer, residual = find_variant(__file__, VARIANTS, variant)
    return make_config(dict(model=dict(heads_per_layer=heads_per_layer, residual=residual)))
