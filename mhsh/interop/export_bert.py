"""A model and its parameters as a folder that transformers loads: config.json, model.safetensors,
vocabulary.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.numpy import save_file

from mhsh.config.schema import ModelConfig
from mhsh.data.tokenizers.wordpiece import WordPieceTokenizer
from mhsh.errors import UserError
from mhsh.interop.bert_config import CONFIG_FILE, bert_config
from mhsh.interop.bert_tensors import to_tensors
from mhsh.interop.plain_bert import plain_bert
from mhsh.interop.vocabulary import write_vocabulary
from mhsh.interop.weights import WEIGHTS_FILE


def export_bert(
    folder: Path, model: ModelConfig, params: Any, tokenizer: WordPieceTokenizer, *, lowercase: bool, labels: Sequence[str]
) -> ModelConfig:
    """Writes the files into `folder`; returns the plain BERT that they hold.

    Args:
      labels: the names of the classes by number; empty: LABEL_0, LABEL_1, ...

    Raises:
      UserError: no plain BERT computes what the model does, or a file cannot be written.
    """
    plain, plain_params = plain_bert(model, params)
    there = bert_config(plain, tokenizer.pad_id, labels)
    (folder / CONFIG_FILE).write_text(json.dumps(there, indent=2) + "\n", encoding="utf-8")
    write_vocabulary(folder, tokenizer, lowercase=lowercase, max_positions=plain.max_positions)
    try:
        # transformers reads a file of weights only if it says that it is for PyTorch.
        save_file(to_tensors(plain, plain_params), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    except SafetensorError as error:
        raise UserError(f"cannot write {folder / WEIGHTS_FILE}: {error}; make room, or choose another --out") from error
    # The library makes a file that its owner alone may read.
    (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)
    return plain
