"""A Hugging Face BERT checkpoint as a model section and parameters. Every tensor is checked and
accounted for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.interop.bert_config import ARCHITECTURES, EXPORTABLE, BertConfig, read_bert_config
from mhsh.interop.bert_tensors import (
    HEADS,
    OUTPUT_BIAS,
    POOLER,
    TIED_BIAS,
    TIED_KERNEL,
    TOKEN_TABLE,
    canonical_names,
    full_name,
    heads_of,
    parameters,
)
from mhsh.interop.exportable import check_fields
from mhsh.interop.tensors import Imported, Tensors, check_tensors, read_params
from mhsh.interop.weights import CONFIG_FILE, importing, open_weights
from mhsh.storage.questions import is_dir


def import_bert(source: Path, base: ModelConfig, *, fresh_heads: bool) -> Imported:
    """Reads the checkpoint in the folder `source`, or the .safetensors file `source` with the
    config.json beside it.

    Args:
      base: gives the fields that a checkpoint knows nothing of: dtypes, remat_policy, scan_unroll.
      fresh_heads: only the body (embeddings, encoder, pooler) is taken; the objective and the heads
        are those of `base`, and their parameters, those of a pooler that the checkpoint lacks
        included, are named in `fresh`.

    Raises UserError where the checkpoint is damaged, pickled, of another architecture, without a
    head, or of another objective than `base`; config.json and the tensors disagree; a tensor is
    missing or belongs nowhere.
    """
    files = open_weights(source)
    config, notes = read_bert_config((source if is_dir(source) else source.parent) / CONFIG_FILE)
    tensors = Tensors(canonical_names(files), files)
    with importing(source, "give --config, config.json and weights of one model, or take its body alone with --fresh-heads"):
        heads = _heads_of_base(base) if fresh_heads else _heads_of_checkpoint(config, tensors, base)
        model = replace(base, **config.fields, **heads)
        check_fields("model", model, EXPORTABLE, "BERT", "import")
        has_pooler = any(name.startswith(POOLER) for name in tensors.names)
        fresh = [part for part in heads_of(model) if part != "pooler" or not has_pooler] if fresh_heads else []
        unread = (*(HEADS.values() if fresh_heads else ()), *(() if "pooler" in heads_of(model) else (POOLER,)))
        left_out = {name for name in tensors.names if name.startswith(unread)} if unread else set()
        taken = [row for row in parameters(model) if row.path.split("/")[0] not in fresh]
        tied = {TIED_KERNEL, TIED_BIAS} if "prediction" in heads_of(model) else set()
        check_tensors(model, taken, tensors, left_out | tied, full_name)
        if not fresh_heads:
            _check_tied(config, tensors)
    return Imported(
        model=model,
        params=read_params(model, taken, tensors),
        fresh=tuple(row.path for row in parameters(model) if row.path.split("/")[0] in fresh),
        left_out=tuple(sorted(tensors.names[name] for name in left_out)),
        architecture=config.architecture or "BERT",
        labels=config.labels if model.objective == "classification" and not fresh_heads else (),
        notes=notes,
        files=tuple(sorted({file.path for file in files.values()})),
    )


def _heads_of_base(base: ModelConfig) -> dict[str, Any]:
    """The fields of the model section that depend on the heads."""
    if base.objective not in ARCHITECTURES.values():
        raise ValueError(f"the --config has model.objective = {base.objective!r}, of which no BERT has the heads")
    return {name: getattr(base, name) for name in ("objective", "next_sentence", "num_classes")}


def _heads_of_checkpoint(config: BertConfig, tensors: Tensors, base: ModelConfig) -> dict[str, Any]:
    """The same by the architecture, or where config.json has none by the tensors. A BertForMaskedLM
    may have the next-sentence head as well: that is how the first BERTs were published.
    """
    present = [head for head, prefix in HEADS.items() if any(name.startswith(prefix) for name in tensors.names)]
    if config.architecture is not None:
        objective = ARCHITECTURES[config.architecture]
    else:
        objectives = {"mlm" if head in ("prediction", "next_sentence") else head for head in present}
        if len(objectives) > 1 or "classification" in objectives:
            # Of a row or of each of its tokens: the tensors look alike.
            raise ValueError(f"config.json has no architectures, and the tensors do not tell which of {', '.join(ARCHITECTURES)}")
        objective = next(iter(objectives), None)
    if objective is None:
        raise ValueError("it is a BERT without a head, which mhsh cannot train")
    if objective != base.objective:
        raise ValueError(f"its heads are of objective {objective!r}, the --config has model.objective = {base.objective!r}")
    if objective != "classification":
        has_second = objective == "mlm" and (config.architecture == "BertForPreTraining" or "next_sentence" in present)
        return {"objective": objective, "next_sentence": has_second, "num_classes": 0}
    num_classes = len(config.labels)
    if num_classes != base.num_classes:
        raise ValueError(f"it has {num_classes} labels, the --config has model.num_classes = {base.num_classes}")
    if config.problem_type not in (None, "regression" if num_classes == 1 else "single_label_classification"):
        raise ValueError(
            f"problem_type = {config.problem_type!r} with {num_classes} labels is not a choice of one class, nor one number"
        )
    return {"objective": objective, "next_sentence": False, "num_classes": num_classes}


def _check_tied(config: BertConfig, tensors: Tensors) -> None:
    """The output matrix and its bias, where they are stored a second time, are those that they are
    tied to.
    """
    if OUTPUT_BIAS not in tensors.names:
        return
    if config.tie_word_embeddings is False and TIED_KERNEL not in tensors.names:
        raise ValueError(f"config.json has tie_word_embeddings = false, but the tensor {TIED_KERNEL} is missing")
    for name, original in ((TIED_KERNEL, TOKEN_TABLE), (TIED_BIAS, OUTPUT_BIAS)):
        if name in tensors.names and not tensors.equal(name, original):
            raise ValueError(f"the tensor {name} differs from {tensors.names[original]}, which mhsh takes in its stead")
