"""A standard decoder (Llama, Qwen3), shallow multi-head against deep single-head.

    mhsh train --config=gpt:24l1h --workdir=runs/24l1h
    mhsh prepare --config=gpt:24l16h --config.data.source='text:corpus/*.txt.xz' --out=prepared
    mhsh train --config=gpt:384l1h --config.data.source=arrayrecord:prepared --workdir=runs/384l1h

gpt:VARIANT is one of every grouping of 384 heads (24l16h ... 384l1h) or of the 24 heads of a small
model for two CPU cores (6l4h ... 24l1h). With _gqa in its name four heads of queries (small: two)
share one of keys and values, and stay in one layer. With _x4 the layers are passed four times, each
time the same. Any residual scheme can stand for `pre_ln`.

The model is Llama's: rotary positions (theta 10,000), Pre-LN with RMSNorm (epsilon 1e-5), a gated
feed-forward part with SiLU, no biases, no dropout, the output tied to the token table (model.head =
untied: a matrix of its own). With model.qk_norm it is Qwen3's. It deviates from them in these
points:

  - N * H need not be D, and regrouping keeps F of all layers, so F is not a fixed multiple of D;
  - initial values are Xavier's by the fans before regrouping, so that all groupings start alike,
    and D^-1/2 for the token table; Llama has a deviation of 0.02 for all (model.init = bert);
  - [SEP] ends a document, nothing begins one, and attention sees the documents before in its row;
  - the tokens are bytes, or BERT's WordPiece (data.tokenizer = wordpiece), not BPE;
  - the residual stream, norms, rotation, softmax and loss are float32, whatever the compute dtype.

None of the large variants has been trained yet.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_config

SIZES = {
    "large": dict(num_layers=24, num_heads=16, head_dim=64, embed_dim=1024, mlp_dim=2816),
    "small": dict(num_layers=6, num_heads=4, head_dim=32, embed_dim=128, mlp_dim=352),
}

# variant: (size, heads per layer, heads of keys and values in a layer of that size or 0 for all,
# passes)
VARIANTS = {
    "24l16h": ("large", 16, 0, 1),
    "48l8h": ("large", 8, 0, 1),
    "96l4h": ("large", 4, 0, 1),
    "192l2h": ("large", 2, 0, 1),
    "384l1h": ("large", 1, 0, 1),
    "24l16h_gqa": ("large", 16, 4, 1),
    "48l8h_gqa": ("large", 8, 4, 1),
    "96l4h_gqa": ("large", 4, 4, 1),
    "6l4h": ("small", 4, 0, 1),
    "12l2h": ("small", 2, 0, 1),
    "24l1h": ("small", 1, 0, 1),
    "6l4h_gqa": ("small", 4, 2, 1),
    "12l2h_gqa": ("small", 2, 2, 1),
    "6l4h_x2": ("small", 4, 0, 2),
    "6l4h_x4": ("small", 4, 0, 4),
}

DECODER = dict(
    model=dict(
        objective="clm",
        positions="rotary",
        residual="pre_ln",
        norm="rms",
        mlp="gated",
        activation="silu",
        bias=False,
        head="tied",
    )
)

# What the large size changes besides its shape; the small one is as the quickstart.
LARGE = dict(
    model=dict(vocab_size=30522, max_positions=1024, compute_dtype="bfloat16", remat_policy="auto"),
    data=dict(tokenizer="wordpiece", lowercase=True, sequence_length=1024),
    optimizer=dict(learning_rate=6e-4, schedule="cosine", warmup_steps=2_000, beta2=0.95, weight_decay=0.1),
    train=dict(
        num_steps=100_000,
        batch_size=256,
        accumulation_steps=16,
        log_interval=100,
        eval_interval=5_000,
        eval_batches=50,
        checkpoint_interval=5_000,
        keep_checkpoints=3,
    ),
)


def get_config(variant: str) -> ConfigDict:
    """The config of one row of VARIANTS."""
    size, heads_per_layer, num_kv_heads, loops = find_variant(__file__, VARIANTS, variant)
    shape = dict(model=dict(SIZES[size], heads_per_layer=heads_per_layer, num_kv_heads=num_kv_heads, loops=loops))
    return make_config(DECODER, shape, {"large": LARGE}.get(size, {}))
