"""BERT pre-training, shallow multi-head against deep single-head.

    mhsh prepare --config=bert:24l16h --config.data.source='text:corpus/*.txt.xz' \\
        --config.data.vocab_path=vocab.txt --out=prepared
    mhsh train --config=bert:24l16h --config.data.source=arrayrecord:prepared \\
        --workdir=runs/24l16h

bert:VARIANT is one of every grouping of BERT-base's 144 heads (12l12h ... 144l1h), BERT-large's 384
(24l16h ... 384l1h), the 8 of a mini model that two CPU cores train within the hour (2l4h, 4l2h,
8l1h), the 12 of a small model that they train within two minutes (3l4h, 6l2h, 12l1h), and the 16 of
a tiny one that tries commands and learns nothing in its 40 steps (2l8h ... 16l1h). All variants of
one size share every hyper-parameter; only the grouping of the heads differs. All steps are on rows
of one length.

bert:VARIANT-RECIPE trains otherwise: in BERT's two phases (phase1, phase2), in the same with LAMB's
large batches (lamb1, lamb2), or for one day of one accelerator (day). A second phase starts where
the first one ends:

    mhsh train --config=bert:24l16h-phase2 \\
        --config.data.source=arrayrecord:prepared512 \\
        --config.train.start_from=runs/24l16h-phase1 --workdir=runs/24l16h-phase2

Hardware, time and result: the mini variants are in docs/study/bert.md; none of the full-size
variants has been trained to the end yet.
"""

from __future__ import annotations

from ml_collections import ConfigDict

from mhsh.configs.base import make_config, no_variant

SIZES = {
    "base": dict(num_layers=12, num_heads=12, head_dim=64, embed_dim=768, mlp_dim=3072),
    "large": dict(num_layers=24, num_heads=16, head_dim=64, embed_dim=1024, mlp_dim=4096),
    "small": dict(num_layers=3, num_heads=4, head_dim=16, embed_dim=64, mlp_dim=256),
    "mini": dict(num_layers=2, num_heads=4, head_dim=32, embed_dim=128, mlp_dim=512),
    "tiny": dict(num_layers=2, num_heads=8, head_dim=8, embed_dim=64, mlp_dim=256),
}

# variant: (size, heads per layer)
VARIANTS = {
    "12l12h": ("base", 12),
    "24l6h": ("base", 6),
    "36l4h": ("base", 4),
    "48l3h": ("base", 3),
    "72l2h": ("base", 2),
    "144l1h": ("base", 1),
    "24l16h": ("large", 16),
    "48l8h": ("large", 8),
    "96l4h": ("large", 4),
    "192l2h": ("large", 2),
    "384l1h": ("large", 1),
    "3l4h": ("small", 4),
    "6l2h": ("small", 2),
    "12l1h": ("small", 1),
    "2l4h": ("mini", 4),
    "4l2h": ("mini", 2),
    "8l1h": ("mini", 1),
    "2l8h": ("tiny", 8),
    "4l4h": ("tiny", 4),
    "8l2h": ("tiny", 2),
    "16l1h": ("tiny", 1),
}


# What all sizes share.
BERT = dict(
    model=dict(
        objective="mlm",
        vocab_size=30522,
        max_positions=512,
        num_token_types=2,
        next_sentence=True,
        activation="gelu",
        init="bert",
        hidden_dropout=0.1,
        attention_dropout=0.1,
        embedding_dropout=0.1,
        layer_norm_epsilon=1e-12,
        compute_dtype="bfloat16",
        remat_policy="auto",
    ),
    data=dict(tokenizer="wordpiece", lowercase=True, max_predictions=20, mask_fraction=0.15),
    optimizer=dict(learning_rate=1e-4, schedule="linear", warmup_steps=10_000, beta2=0.999, epsilon=1e-6),
    train=dict(
        num_steps=1_000_000,
        batch_size=256,
        log_interval=100,
        eval_interval=5_000,
        eval_batches=50,
        checkpoint_interval=5_000,
        keep_checkpoints=3,
    ),
)

# What the tiny size changes besides its shape: seconds on a CPU instead of weeks on a slice.
TINY = dict(
    model=dict(vocab_size=2048, max_positions=64, compute_dtype="float32"),
    data=dict(sequence_length=64, max_predictions=10),
    optimizer=dict(warmup_steps=10),
    train=dict(num_steps=40, batch_size=8, log_interval=1, eval_interval=20, eval_batches=2, checkpoint_interval=10),
)

# What the mini size changes besides its shape: an hour of two CPU cores, in two phases. On rows of
# 32 tokens it learns to look at its neighbours within 2,000 steps; on as many tokens in rows of 128
# it had not after 9,000 (docs/study/bert.md). It sees few texts more than once, so nothing is
# dropped; for so narrow a model BERT's deviation of 0.02 is small.
MINI = dict(
    model=dict(
        vocab_size=8192,
        max_positions=32,
        init="xavier",
        hidden_dropout=0.0,
        attention_dropout=0.0,
        embedding_dropout=0.0,
        compute_dtype="float32",
    ),
    data=dict(sequence_length=32, max_predictions=5),
    optimizer=dict(learning_rate=2e-3, warmup_steps=500),
    train=dict(num_steps=8_000, batch_size=64, log_interval=50, eval_interval=400, eval_batches=15, checkpoint_interval=400),
)

# What the small size changes besides its shape and MINI: a minute or two of two CPU cores, for a
# first look at a text. It has seen each token of so small a vocabulary often enough after 300 steps
# to predict better than token frequencies do (docs/own_corpus.md).
SMALL = dict(
    model=dict(vocab_size=2048),
    optimizer=dict(learning_rate=3e-3, warmup_steps=50),
    train=dict(num_steps=1_000, batch_size=32, log_interval=25, eval_interval=100, eval_batches=8, checkpoint_interval=500),
)

CHANGES = {"mini": (MINI,), "small": (MINI, SMALL), "tiny": (TINY,)}

FIRST_PHASE = 0.9  # of the steps (Devlin et al. 2018, appendix A.2)
LONGER = 4  # times as long are the rows of the second phase: 512 tokens after 128

# At 128 x 4,096 tokens a step Admin's authors saw the profiled omega fail and the closed form train
# 100 + 100 layers of eight heads (microsoft/admin-torch at 08b6605, example/README.md, lines 78 to
# 92). So all shapes have the closed form where steps are as large.
LARGE_STEPS = dict(admin_omega="closed_log")

# The batches and rates of You et al. 2020 (arXiv 1904.00962, table 4) for 32,768 rows: as many rows
# as 1M steps of 512.
LAMB = dict(
    model=LARGE_STEPS,
    optimizer=dict(name="lamb", learning_rate=5e-3, warmup_steps=3_125),
    train=dict(num_steps=15_625, batch_size=32_768, log_interval=10, eval_interval=250, eval_batches=1, checkpoint_interval=250),
)

# What Izsak et al. 2021 (arXiv 2104.07705) and Geiping and Goldstein 2022 (arXiv 2212.14034) found
# for a day: rows of 128 tokens of one text, batches of 4,096 (in parts that one device holds), a
# high rate with clipping, no dropout as no text comes back. 21 billion tokens; with 12l12h 1.2e19
# FLOPs, a day at 134 TFLOP/s: set train.num_steps for another device, or for 24l16h.
DAY = dict(
    model=dict(LARGE_STEPS, next_sentence=False, hidden_dropout=0.0, attention_dropout=0.0, embedding_dropout=0.0),
    optimizer=dict(learning_rate=1e-3, warmup_steps=2_400, beta2=0.98, clip_norm=0.5),
    train=dict(
        num_steps=40_000, batch_size=4_096, accumulation_steps=16, eval_interval=1_000, eval_batches=4, checkpoint_interval=500
    ),
)


def get_config(variant: str) -> ConfigDict:
    """The config of one row of VARIANTS, with one of RECIPES where its name follows."""
    name, dash, recipe = variant.partition("-")
    if name not in VARIANTS or (dash and recipe not in RECIPES):
        raise no_variant(__file__, VARIANTS, variant, f", each also with -{', -'.join(RECIPES)}")
    size, heads_per_layer = VARIANTS[name]
    shape = dict(model=dict(SIZES[size], heads_per_layer=heads_per_layer))
    config = make_config(BERT, shape, *CHANGES.get(size, ()))
    for change in RECIPES[recipe] if dash else ():
        change(config)
    return config


def first_phase(config: ConfigDict) -> None:
    """The first nine tenths of all steps. The rate falls towards what it is there, not to 0."""
    first = _steps_of_first_phase(config)
    config.optimizer.end_learning_rate = _rate(config, first + 1)
    config.train.num_steps = first


def second_phase(config: ConfigDict) -> None:
    """The last tenth, on longer rows: goes on with the parameters, the moments and the rate of the
    first.
    """
    first = _steps_of_first_phase(config)
    length, predictions = LONGER * config.data.sequence_length, LONGER * config.data.max_predictions
    config.data.update(sequence_length=length, max_predictions=predictions)
    config.model.max_positions = max(config.model.max_positions, length)
    config.optimizer.update(learning_rate=_rate(config, first), warmup_steps=0)
    config.train.update(num_steps=config.train.num_steps - first, keep_moments=True, seed=config.train.seed + 1)


def lamb(config: ConfigDict) -> None:
    """Large batches for the whole of the training."""
    config.update(LAMB)


def day(config: ConfigDict) -> None:
    """The recipe `-day`: as many steps as one accelerator trains in 24 hours."""
    config.update(DAY)


def _steps_of_first_phase(config: ConfigDict) -> int:
    return round(FIRST_PHASE * config.train.num_steps)


def _rate(config: ConfigDict, step: int) -> float:
    """On the line that falls from the peak at the end of the warm-up to 0 one step after the last;
    `step` counts from 1.
    """
    end = config.train.num_steps + 1
    return config.optimizer.learning_rate * (end - step) / (end - config.optimizer.warmup_steps)


RECIPES = {
    "phase1": (first_phase,),
    "phase2": (second_phase,),
    "lamb1": (lamb, first_phase),
    "lamb2": (lamb, second_phase),
    "day": (day,),
}
