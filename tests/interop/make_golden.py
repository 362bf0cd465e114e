"""Makes tests/interop/golden: small random BERTs as transformers saves them, and what it computes
with them.

    python -m tests.interop.make_golden

Needs torch and transformers (the parity extra). What is there already is made anew; the same
versions give the same bytes.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import torch
import transformers

from tests.interop.small_bert import GOLDEN, TOKENS

CASES = {
    "pretraining": ("BertForPreTraining", dict(hidden_act="gelu")),
    "classification": ("BertForSequenceClassification", dict(hidden_act="gelu_new", num_labels=3)),
    "span": ("BertForQuestionAnswering", dict(hidden_act="relu")),
}
ROWS, LENGTH = 3, 12


def main() -> None:
    """All cases."""
    shutil.rmtree(GOLDEN, ignore_errors=True)
    for seed, (name, (kind, fields)) in enumerate(CASES.items()):
        make(GOLDEN / name, kind, fields, seed)


def make(folder: Path, kind: str, fields: dict[str, object], seed: int) -> None:
    """One model, its vocabulary, and expected.npz: inputs and outputs."""
    torch.manual_seed(seed)
    config = transformers.BertConfig(
        vocab_size=31,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=16,
        **fields,
    )
    model = getattr(transformers, kind)(config).eval()
    with torch.no_grad():
        for parameter, values in model.named_parameters():
            values.normal_(1.0 if parameter.endswith("LayerNorm.weight") else 0.0, 0.2)
    model.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)  # the library makes it readable to its owner alone
    (folder / "vocab.txt").write_text("".join(token + "\n" for token in TOKENS), encoding="utf-8")
    inputs = random_inputs(np.random.default_rng(seed), config.vocab_size)
    labels = {}
    if kind == "BertForPreTraining":
        rng = np.random.default_rng(seed + 100)
        masked = (rng.random((ROWS, LENGTH)) < 0.4) & (inputs["attention_mask"] > 0)
        labels["labels"] = np.where(masked, rng.integers(0, config.vocab_size, (ROWS, LENGTH)), -100)
        labels["next_sentence_label"] = np.array([0, 1, 0])
    with torch.no_grad():
        outputs = model(**{name: torch.from_numpy(values) for name, values in (inputs | labels).items()})
    np.savez(folder / "expected.npz", **inputs, **labels, **{name: values.numpy() for name, values in outputs.items()})


def random_inputs(rng: np.random.Generator, vocab_size: int) -> dict[str, np.ndarray]:
    """Rows of 12, 7 and 4 tokens, with two segments."""
    mask = np.arange(LENGTH) < np.array([[12], [7], [4]])
    types = (np.arange(LENGTH) >= np.array([[5], [3], [2]])) & mask
    ids = np.where(mask, rng.integers(0, vocab_size, (ROWS, LENGTH)), 0)
    return {"input_ids": ids, "attention_mask": mask.astype(np.int64), "token_type_ids": types.astype(np.int64)}


if __name__ == "__main__":
    main()
