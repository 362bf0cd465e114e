"""Translation with an encoder and a decoder, shallow multi-head against deep single-head.

    mhsh train --config=translation:tiny --workdir=runs/tiny
    mhsh prepare --config=translation:6l8h --out=wmt14 \\
        --config.data.source=tfds:wmt14_translate/de-en
    mhsh train --config=translation:48l1h --config.data.source=arrayrecord:wmt14 \\
        --config.data.validation_source= --workdir=runs/48l1h

translation:VARIANT is one of every grouping of Transformer-base's 48 heads a stack (6l8h ...
48l1h); 18 and 100 layers of 8 heads (18l8h, 100l8h); the 24 of a smaller one for IWSLT'14 German to
English (iwslt_6l4h ... iwslt_24l1h); a small model for multi30k (small ... small_16l1h); a tiny one
for number words (tiny ... tiny_8l1h). All variants of one size share every hyper-parameter. The
recipes of the base size and of IWSLT'14 are those of Admin's authors (arXiv 2004.08249, and its
published scripts). Hardware, time and result: docs/study/translation.md; IWSLT'14 was not run.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import find_variant, make_config

# L is that of either stack.
SIZES = {
    "base": dict(num_layers=6, num_decoder_layers=6, num_heads=8, head_dim=64, embed_dim=512, mlp_dim=2048),
    "18 layers": dict(num_layers=18, num_decoder_layers=18, num_heads=8, head_dim=64, embed_dim=512, mlp_dim=2048),
    "100 layers": dict(num_layers=100, num_decoder_layers=100, num_heads=8, head_dim=64, embed_dim=512, mlp_dim=2048),
    "iwslt": dict(num_layers=6, num_decoder_layers=6, num_heads=4, head_dim=128, embed_dim=512, mlp_dim=1024),
    "small": dict(num_layers=4, num_decoder_layers=4, num_heads=4, head_dim=32, embed_dim=128, mlp_dim=256),
    "tiny": dict(num_layers=2, num_decoder_layers=2, num_heads=4, head_dim=32, embed_dim=128, mlp_dim=256),
}

# variant: (size, heads per layer)
VARIANTS = {
    "6l8h": ("base", 8),
    "12l4h": ("base", 4),
    "24l2h": ("base", 2),
    "48l1h": ("base", 1),
    "18l8h": ("18 layers", 8),
    "100l8h": ("100 layers", 8),
    "iwslt_6l4h": ("iwslt", 4),
    "iwslt_12l2h": ("iwslt", 2),
    "iwslt_24l1h": ("iwslt", 1),
    "small": ("small", 4),
    "small_8l2h": ("small", 2),
    "small_16l1h": ("small", 1),
    "tiny": ("tiny", 4),
    "tiny_4l2h": ("tiny", 2),
    "tiny_8l1h": ("tiny", 1),
}


# The recipe of the base size: the authors' for Admin (Transformer-Clinic at 70f72b7,
# nmt-experiments/wmt14_en-de.md, lines 139 to 152), of four GPUs with 8,192 tokens each.
RECIPE = dict(
    model=dict(
        objective="translation",
        vocab_size=32768,
        max_positions=256,
        positions="sinusoidal",
        activation="relu",
        init="fairseq",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        mlp_dropout=0.1,
        embedding_dropout=0.1,
        compute_dtype="bfloat16",
        remat_policy="auto",
    ),
    optimizer=dict(name="radam", learning_rate=1e-3, schedule="inverse_sqrt", warmup_steps=8_000, weight_decay=0.0, clip_norm=0.0),
    train=dict(
        num_steps=500_000,
        batch_size=128,  # 32,768 places a side
        label_smoothing=0.1,
        log_interval=100,
        eval_interval=1_000,
        eval_batches=0,
        checkpoint_interval=1_500,
        keep_checkpoints=10,
    ),
)

# What a size changes besides its shape. IWSLT: the authors' recipe (there, iwslt14_de-en.md, lines
# 90 to 105; 10,000 merges by pre-process/iwslt14de-en.sh, line 17), with a checkpoint about every
# epoch. Fairseq's own for this shape has Adam, 5e-4 after 4,000 steps, no dropout of attention and
# feed-forward, and an encoder with its own embeddings (examples/translation/README.md, lines 85 to
# 92). Small: the width that works for multi30k's 29,000 pairs (Wu
# et al. 2021, arXiv 2105.14462, section 4.1), and an hour on two CPU cores. Tiny: minutes on two
# CPU cores.
CHANGES = {
    "iwslt": dict(
        model=dict(vocab_size=10_240, hidden_dropout=0.3, embedding_dropout=0.3),
        data=dict(source="text:iwslt14/train.de,iwslt14/train.en", validation_source="text:iwslt14/valid.de,iwslt14/valid.en"),
        optimizer=dict(learning_rate=7e-4, warmup_steps=6_000, weight_decay=1e-4),
        train=dict(num_steps=100_000, batch_size=16, checkpoint_interval=1_000),  # 4,096 places a side
    ),
    "small": dict(
        model=dict(
            vocab_size=6144,
            max_positions=128,
            compute_dtype="float32",
            attention_dropout=0.0,
            mlp_dropout=0.0,
        ),
        data=dict(validation_source="", sequence_length=64, max_length_ratio=3.0, validation_sentences=1_014),
        optimizer=dict(learning_rate=3e-3, warmup_steps=400),
        train=dict(num_steps=3_000, batch_size=32, log_interval=20, eval_interval=500, checkpoint_interval=100),
    ),
    "tiny": dict(
        model=dict(
            vocab_size=400,
            max_positions=64,
            compute_dtype="float32",
            hidden_dropout=0.0,
            attention_dropout=0.0,
            mlp_dropout=0.0,
            embedding_dropout=0.0,
        ),
        data=dict(source="numbers", validation_source="", sequence_length=64, max_length_ratio=9.0, validation_sentences=1_000),
        optimizer=dict(name="adamw", learning_rate=2e-3, schedule="linear", warmup_steps=100, clip_norm=1.0),
        train=dict(
            num_steps=300,
            batch_size=64,
            label_smoothing=0.0,
            log_interval=10,
            eval_interval=100,
            checkpoint_interval=200,
            keep_checkpoints=3,
        ),
    ),
}


def get_config(variant: str) -> ConfigDict:
    """The config of one row of VARIANTS."""
    size, heads_per_layer = find_variant(__file__, VARIANTS, variant)
    shape = dict(model=dict(SIZES[size], heads_per_layer=heads_per_layer))
    return make_config(RECIPE, shape, CHANGES.get(size, {}))
