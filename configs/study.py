"""The models of the study "heads or depth?" (launch/study).

Causal language models over bytes of English in three sizes, one of them over word pieces and
trained to the end, a standard decoder so too and on synthetic tasks, and translation of number
words and of multi30k, all with heads of width 16.
`launch/study` names the axes of each stage, and docs/evidence.md shows what came out.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_config
from mhsh.configs.gpt import DECODER
from mhsh.configs.translation import CHANGES
from mhsh.configs.translation import RECIPE as TRANSLATION

# size: its model before heads are grouped. In all 12, 24 and 48 heads, in 3 layers.
SIZES: dict[str, dict[str, Any]] = {
    "small": dict(num_layers=3, num_heads=4, embed_dim=64, mlp_dim=256),
    "base": dict(num_layers=3, num_heads=8, embed_dim=128, mlp_dim=512),
    "large": dict(num_layers=3, num_heads=16, embed_dim=256, mlp_dim=1024),
}
LANGUAGE = dict(
    model=dict(objective="clm", head_dim=16),
    train=dict(num_steps=400, eval_interval=100, eval_batches=32, checkpoint_interval=200),
)
# 6 + 6 layers of 8 heads, of the width of translation:tiny and :small; the recipe is theirs.
PAIRS = dict(num_layers=6, num_decoder_layers=6, num_heads=8, head_dim=16, embed_dim=128, mlp_dim=512)
# 20 tokens a parameter. The last fifth of a run is its decay, so that the axis `budget` shares the
# steps before it.
TRAINED = dict(
    model=dict(vocab_size=2048),
    data=dict(tokenizer="wordpiece"),
    optimizer=dict(schedule="wsd", decay_steps=3600),
    train=dict(num_steps=18_000, log_interval=50, eval_interval=1800, eval_batches=128, checkpoint_interval=0),
)
# The same for 433,000 parameters: gpt:6l4h, half as wide.
SMALL_DECODER = dict(
    model=dict(num_layers=6, num_heads=4, embed_dim=64, mlp_dim=176),
    optimizer=dict(decay_steps=1700),
    train=dict(num_steps=8500, eval_interval=850),
)
# The same, twelve times as large, for 6 tokens a parameter.
LARGER_DECODER = dict(
    model=dict(num_layers=6, num_heads=8, head_dim=32, embed_dim=256, mlp_dim=704),
    optimizer=dict(decay_steps=1560),
    train=dict(num_steps=7800, batch_size=32, eval_interval=780, eval_batches=32),
)
# Associative recall (or copying), where the loss has a known floor; bytes, a document a row.
RECALL = dict(
    model=dict(num_layers=2, num_heads=4, embed_dim=64, mlp_dim=176),
    data=dict(source="recall:1"),
    optimizer=dict(schedule="wsd", decay_steps=200),
    train=dict(num_steps=1000, log_interval=20, eval_interval=100, eval_batches=64, checkpoint_interval=0),
)
VARIANTS = {
    **{size: (LANGUAGE, dict(model=shape)) for size, shape in SIZES.items()},
    "trained": (LANGUAGE, dict(model=SIZES["base"]), TRAINED),
    "decoder": (LANGUAGE, DECODER, TRAINED, SMALL_DECODER),
    "larger": (LANGUAGE, DECODER, TRAINED, LARGER_DECODER),
    "recall": (LANGUAGE, DECODER, RECALL),
    "numbers": (TRANSLATION, dict(model=PAIRS), CHANGES["tiny"]),
    "multi30k": (TRANSLATION, dict(model=PAIRS), CHANGES["small"], dict(train=dict(num_steps=1000, checkpoint_interval=200))),
}


def get_config(variant: str) -> ConfigDict:
    """The config of a size or of a translation."""
    return make_config(*find_variant(__file__, VARIANTS, variant))
