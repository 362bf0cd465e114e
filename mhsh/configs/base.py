"""Every field of a config once, with a value; the other config files say in what they differ.

    from mhsh.configs.base import make_config

    def get_config(variant: str) -> ConfigDict:
        return make_config(dict(model=dict(num_layers=2), train=dict(num_steps=100)))

docs/config.md says what each field means. The values are those of a small causal language model
over bytes of English.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from mhsh.errors import UserError

T = TypeVar("T")
Fields = Mapping[str, Mapping[str, Any]]  # section: {field: value}

MODEL = dict(
    objective="clm",
    vocab_size=264,  # 256 bytes and 5 special tokens, rounded up to a multiple of 8
    max_positions=128,
    positions="learned",
    num_token_types=0,
    next_sentence=False,
    num_classes=0,
    heads_per_layer=0,  # not regrouped
    layers_at_equal_size=0,  # not widened
    num_layers=6,
    num_decoder_layers=0,
    num_heads=4,
    head_dim=32,
    embed_dim=128,
    mlp_dim=512,
    activation="gelu_tanh",
    residual="admin",
    admin_omega="profiled",
    depth_exponent=1.0,
    base_layers=0,
    qk_norm=False,
    init="xavier",
    fans="ungrouped",
    layers_per_group=1.0,
    hidden_dropout=0.0,
    attention_dropout=0.0,
    mlp_dropout=0.0,
    embedding_dropout=0.0,
    layer_norm_epsilon=1e-5,
    compute_dtype="float32",
    residual_dtype="float32",
    attention_implementation="xla",
    remat_policy="none",
    scan_unroll=1,
)
PRETRAINING_DATA = dict(
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
DATA: Mapping[str, Mapping[str, Any]] = {
    "mlm": PRETRAINING_DATA,
    "clm": PRETRAINING_DATA,
    "translation": dict(
        source="tfds:wmt14_translate/de-en",
        validation_source="tfds:wmt14_translate/de-en:validation",
        tokenizer="bpe",
        vocab_path="",
        sequence_length=256,
        layout="packed",
        max_length_ratio=1.5,
        validation_fraction=0.01,
        validation_sentences=0,
        seed=0,
    ),
    "classification": dict(
        task="cola",
        source="tsv:GLUE",
        vocab_path="vocab.txt",
        lowercase=True,
        sequence_length=128,
        seed=0,
    ),
    "span": dict(
        source="json:train.json",
        validation_source="json:dev.json",
        validation_fraction=0.1,
        vocab_path="vocab.txt",
        lowercase=True,
        sequence_length=384,
        stride=128,
        max_question_length=64,
        seed=0,
    ),
}
OPTIMIZER = dict(
    name="adamw",
    schedule="constant",
    learning_rate=2e-3,
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
    gradient_dtype="compute",
    xla_flags="none",
    accumulation_steps=1,
    log_interval=5,
    tracker="tensorboard",
    eval_interval=50,
    eval_batches=16,
    checkpoint_interval=150,
    keep_checkpoints=2,
    keep_every=0,
    max_skipped_steps=10,
    profile_steps="",
    hang_seconds=0,
)
MESH = dict(data=-1, fsdp=1, tensor=1)

# What `mhsh finetune` takes from the pre-trained run, besides the fields of the model.
FROM_THE_RUN = {"data": ("vocab_path", "lowercase"), "train": ("seed", "start_from", "keep_moments")}
# Adam as in BERT's pre-training, and dropout of 0.1 whatever it was there (Devlin et al. 2018,
# appendix A.3); validation and a checkpoint at the end.
FINE_TUNING = dict(
    model=dict(hidden_dropout=0.1, attention_dropout=0.1, embedding_dropout=0.1),
    optimizer=dict(schedule="linear", beta2=0.999, epsilon=1e-6),
    train=dict(log_interval=10, eval_interval=0, eval_batches=0, checkpoint_interval=0),
)
WARMUP_SHARE = 0.1  # of the steps of a fine-tuning


def make_config(*changes: Fields) -> ConfigDict:
    """The base with the changes applied one after the other; data is that of the objective."""
    config = ConfigDict(_changed(changes))
    config.lock()
    return config


def make_fine_tuning_config(num_examples: int, epochs: int, batch_size: int, *changes: Fields) -> ConfigDict:
    """The base for fine-tuning, without what the pre-trained run decides."""
    num_steps = -(-epochs * num_examples // batch_size)
    steps = dict(
        optimizer=dict(warmup_steps=round(WARMUP_SHARE * num_steps)),
        train=dict(num_steps=num_steps, batch_size=batch_size),
    )
    fields = _changed([FINE_TUNING, steps, *changes])
    fields["model"] = {name: value for change in (FINE_TUNING, *changes) for name, value in change.get("model", {}).items()}
    for section, names in FROM_THE_RUN.items():
        fields[section] = {name: value for name, value in fields[section].items() if name not in names}
    config = ConfigDict(fields)
    config.lock()
    return config


def find_variant(file: str, variants: Mapping[str, T], variant: str) -> T:
    """The entry of `variants`. Raises UserError with the names there are."""
    if variant not in variants:
        raise no_variant(file, variants, variant)
    return variants[variant]


def no_variant(file: str, variants: Iterable[str], variant: str, more: str = "") -> UserError:
    """The error of a config file that lacks a variant; `more` follows the names there are."""
    there = f"there are {', '.join(variants)}{more}"
    return UserError(f"{Path(file).stem} has no variant {variant!r}; {there}; mhsh configs lists all")


def _changed(changes: Iterable[Fields]) -> dict[str, dict[str, Any]]:
    changes = list(changes)
    objectives = [change["model"]["objective"] for change in changes if "objective" in change.get("model", {})]
    data = DATA[objectives[-1]] if objectives else PRETRAINING_DATA
    base: Fields = dict(model=MODEL, data=data, optimizer=OPTIMIZER, train=TRAIN, mesh=MESH)
    fields = {section: dict(values) for section, values in base.items()}
    for change in changes:
        for section, values in change.items():
            fields[section] |= values
    return fields
