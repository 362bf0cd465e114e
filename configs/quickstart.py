"""The comparison of `bash launch/quickstart`: shallow multi-head against deep single-head, in
minutes on two CPU cores.

A causal language model over bytes of English; every row has the same 48 heads of width 8, the same
data order, the same hyper-parameters and the same seed. Only `model.residual` and
`model.heads_per_layer` differ. Hardware, time and result: docs/quickstart.md.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.errors import UserError

# variant: (heads per layer, residual scheme)
VARIANTS = {
    "6l8h_post_ln": (8, "post_ln"),
    "48l1h_post_ln": (1, "post_ln"),
    "48l1h_admin": (1, "admin"),
    "48l1h_pre_ln": (1, "pre_ln"),
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
    num_layers=6,
    num_heads=8,
    head_dim=8,
    embed_dim=64,
    mlp_dim=256,
    activation="gelu_tanh",
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
    num_steps=300,
    batch_size=8,
    label_smoothing=0.0,
    accumulation_steps=1,
    log_interval=5,
    eval_interval=50,
    eval_batches=16,
    checkpoint_interval=150,
    keep_checkpoints=1,
    keep_every=0,
    max_skipped_steps=10,
    hang_seconds=0,
)


def get_config(variant: str = "6l8h_post_ln") -> ConfigDict:
    """The config of one row of VARIANTS."""
    if variant not in VARIANTS:
        raise UserError(f"configs/quickstart.py has no variant {variant!r}; there are {', '.join(VARIANTS)}")
    heads_per_layer, residual = VARIANTS[variant]
    config = ConfigDict(
        dict(
            model=dict(MODEL, heads_per_layer=heads_per_layer, residual=residual),
            data=dict(DATA),
            optimizer=dict(OPTIMIZER),
            train=dict(TRAIN),
            mesh=dict(data=-1, fsdp=1, tensor=1),
        )
    )
    config.lock()
    return config
