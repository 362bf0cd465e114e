"""Configs from the defaults of mhsh/config/schema.py and what differs from them.

    from mhsh.configs.base import make_config

    def get_config(variant: str) -> ConfigDict:
        return make_config(dict(model=dict(num_layers=2), train=dict(num_steps=100)))

`mhsh configs` says what each field means. The defaults are a small causal language model over bytes
of English.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from ml_collections import ConfigDict

from mhsh.config.fields import SHAPING, section_class, section_names
from mhsh.config.schema import OBJECTIVES, ModelConfig, to_dict
from mhsh.errors import UserError

T = TypeVar("T")
Fields = Mapping[str, Mapping[str, Any]]  # section: {field: value}

# What `mhsh finetune` takes from the pre-trained run, besides the fields of the model.
FROM_THE_RUN = {"data": ("vocab_path", "lowercase"), "train": ("seed", "start_from", "keep_moments")}
# Adam as in BERT's pre-training, and dropout of 0.1 whatever it was there (Devlin et al. 2018,
# appendix A.3); what fits these rows and devices; validation at the end. A crash costs at most the
# steps from one checkpoint to the next: most tasks have fewer, MNLI 37,000.
FINE_TUNING = dict(
    model=dict(hidden_dropout=0.1, attention_dropout=0.1, embedding_dropout=0.1, remat_policy="auto"),
    optimizer=dict(schedule="linear", beta2=0.999, epsilon=1e-6),
    train=dict(log_interval=10, eval_interval=0, eval_batches=0, checkpoint_interval=1_000),
)
WARMUP_SHARE = 0.1  # of the steps of a fine-tuning


def defaults(objective: str) -> dict[str, dict[str, Any]]:
    """Every field of a config file by section, with the schema's default."""
    known = objective if objective in OBJECTIVES else OBJECTIVES[0]  # resolve.py refuses another
    fields = {section: to_dict(section_class(section, known)()) for section in section_names()}
    fields["model"] |= {"objective": objective} | {path.split(".")[1]: 0 for path in SHAPING}
    return fields


def make_config(*changes: Fields) -> ConfigDict:
    """The defaults with the changes applied one after the other; data is that of the objective."""
    return ConfigDict(_merge_changes(changes)).lock()


def make_fine_tuning_config(num_examples: int, epochs: int, batch_size: int, *changes: Fields) -> ConfigDict:
    """The defaults for fine-tuning, without what the pre-trained run decides."""
    num_steps = -(-epochs * num_examples // batch_size)
    steps = dict(
        optimizer=dict(warmup_steps=round(WARMUP_SHARE * num_steps)),
        train=dict(num_steps=num_steps, batch_size=batch_size),
    )
    fields = _merge_changes([FINE_TUNING, steps, *changes])
    fields["model"] = {name: value for change in (FINE_TUNING, *changes) for name, value in change.get("model", {}).items()}
    for section, names in FROM_THE_RUN.items():
        fields[section] = {name: value for name, value in fields[section].items() if name not in names}
    return ConfigDict(fields).lock()


def find_variant(file: str, variants: Mapping[str, T], variant: str) -> T:
    """The entry of `variants`. Raises UserError with the names there are."""
    if variant not in variants:
        raise no_variant(file, variants, variant)
    return variants[variant]


def no_variant(file: str, variants: Iterable[str], variant: str, more: str = "") -> UserError:
    """The error of a config file that lacks a variant; `more` follows the names there are."""
    names = f"there are {', '.join(variants)}{more}"
    return UserError(f"{Path(file).stem} has no variant {variant!r}; {names}; mhsh configs lists all")


def _merge_changes(changes: Iterable[Fields]) -> dict[str, dict[str, Any]]:
    """The defaults with the changes; where none has an objective, of the default one."""
    changes = list(changes)
    objectives = [change["model"]["objective"] for change in changes if "objective" in change.get("model", {})]
    fields = defaults(objectives[-1] if objectives else ModelConfig().objective)
    for change in changes:
        for section, values in change.items():
            fields[section] = fields.get(section, {}) | dict(values)  # resolve.py refuses unknown sections
    return fields
