"""The two sweeps of docs/evidence.md: quality against heads per layer, and the stability map of the
residual schemes.

A causal language model over bytes of English, small enough that either sweep fits into an hour of
two CPU cores; the fields that a sweep varies are given on its command line.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.errors import UserError

# variant: the fields in which it differs from the tables below
VARIANTS = {
    # 24 heads in all; --axes heads_per_layer=8,4,2,1 makes 3, 6, 12 and 24 layers of them.
    "heads": {"model": {}, "optimizer": {}, "train": {}},
    # One head a layer, its feed-forward part as narrow as regrouping makes it; --axes
    # depth=6,18,54.
    "stability": {
        "model": dict(num_heads=1, embed_dim=64, mlp_dim=32, head_dim=16, residual="post_ln"),
        "optimizer": dict(warmup_steps=50),
        "train": dict(num_steps=300, batch_size=4, eval_interval=0, checkpoint_interval=0),
    },
}

MODEL = dict(
    objective="clm",
    vocab_size=264,  # 256 bytes and 5 special tokens, rounded up to a multiple of 8
    max_positions=128,
    positions="learned",
    num_token_types=0,
    next_sentence=False,
    num_decoder_layers=0,
    num_classes=0,
    heads_per_layer=0,  # as they are
    num_layers=3,
    num_heads=8,
    head_dim=16,
    embed_dim=128,
    mlp_dim=512,
    activation="gelu_tanh",
    residual="admin",
    admin_omega="profiled",
    init="xavier",
    hidden_dropout=0.0,
    attention_dropout=0.0,
    mlp_dropout=0.0,
    embedding_dropout=0.0,
    layer_norm_epsilon=1e-5,
    compute_dtype="float32",
    residual_dtype="float32",
    remat_policy="none",
    kernels="auto",
    scan_unroll=1,
)
DATA = dict(
    source="stdlib",
    tokenizer="bytes",
    vocab_path="",
    lowercase=False,
    sequence_length=128,
    max_predictions=0,
    mask_fraction=0.0,
    whole_word_masking=False,
    validation_fraction=0.05,
    seed=0,
)
OPTIMIZER = dict(
    name="adamw",
    learning_rate=2e-3,
    schedule="constant",
    end_learning_rate=0.0,
    warmup_steps=100,
    beta1=0.9,
    beta2=0.98,
    epsilon=1e-8,
    weight_decay=0.01,
    clip_norm=1.0,
)
TRAIN = dict(
    seed=0,
    start_from="",
    keep_moments=False,
    num_steps=1200,
    batch_size=8,
    label_smoothing=0.0,
    accumulation_steps=1,
    log_interval=5,
    eval_interval=100,
    eval_batches=32,
    checkpoint_interval=200,
    keep_checkpoints=1,
    keep_every=0,
    max_skipped_steps=10,
    hang_seconds=0,
)


def get_config(variant: str = "heads") -> ConfigDict:
    """The config of one row of VARIANTS."""
    if variant not in VARIANTS:
        raise UserError(f"configs/evidence.py has no variant {variant!r}; there are {', '.join(VARIANTS)}")
    changed = VARIANTS[variant]
    config = ConfigDict(
        dict(
            model=MODEL | changed["model"],
            data=dict(DATA),
            optimizer=OPTIMIZER | changed["optimizer"],
            train=TRAIN | changed["train"],
            mesh=dict(data=-1, fsdp=1, tensor=1),
        )
    )
    config.lock()
    return config
