"""A Hugging Face BERT checkpoint as a model section and parameters. Every tensor is accounted for,
and the classes of a fine-tuned one are put into the order of its task.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.data.glue import MAX_SCORE, GlueTask
from mhsh.errors import UserError
from mhsh.interop.bert_config import ARCHITECTURES, EXPORTABLE, BertConfig, check_fields, read_bert_config
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
from mhsh.interop.tensors import ImportedCheckpoint, Tensors, check_tensors, read_params
from mhsh.interop.weights import CONFIG_FILE, open_weights, wrap_file_errors
from mhsh.storage.questions import is_dir
from mhsh.text import format_list


def import_bert(source: Path, base: ModelConfig, *, fresh_heads: bool) -> ImportedCheckpoint:
    """Reads the checkpoint in the folder `source`, or the .safetensors file `source` with the
    config.json beside it; `base` gives the fields that a checkpoint knows nothing of.

    With `fresh_heads` the body (embeddings, encoder, pooler) alone is taken. The objective and the
    heads are those of `base`, and `fresh` names their parameters, and those of a pooler that is not
    there. Raises UserError where the checkpoint is damaged, pickled, without a head, of another
    architecture or objective; a tensor is missing, belongs nowhere or is not as config.json says.
    """
    files = open_weights(source)
    config, notes = read_bert_config((source if is_dir(source) else source.parent) / CONFIG_FILE)
    tensors = Tensors(canonical_names(files), files)
    with wrap_file_errors(source, "give --config, config.json and weights of one model, or take its body alone with --fresh-heads"):
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
    return ImportedCheckpoint(
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
    """The fields of the model section that depend on the heads, by the architecture, or where
    config.json has none by the tensors. A BertForMaskedLM may have the next-sentence head as well:
    that is how the first BERTs were published.
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
        raise ValueError(f"problem_type = {config.problem_type!r} with {num_classes} labels is neither one class nor one number")
    return {"objective": objective, "next_sentence": False, "num_classes": num_classes}


def _check_tied(config: BertConfig, tensors: Tensors) -> None:
    """Checks that the output matrix and its bias, where they are stored, equal the tensors that
    they are tied to.
    """
    if OUTPUT_BIAS not in tensors.names:
        return
    if config.tie_word_embeddings is False and TIED_KERNEL not in tensors.names:
        raise ValueError(f"config.json has tie_word_embeddings = false, but the tensor {TIED_KERNEL} is missing")
    for name, original in ((TIED_KERNEL, TOKEN_TABLE), (TIED_BIAS, OUTPUT_BIAS)):
        if name in tensors.names and not tensors.equal(name, original):
            raise ValueError(f"the tensor {name} differs from {tensors.names[original]}, which mhsh takes instead")


def reorder_for_task(imported: ImportedCheckpoint, task: GlueTask, given: Sequence[str] | None) -> ImportedCheckpoint:
    """The checkpoint with the outputs of its head in the order of task.label_names, by the names
    `given` in its own order (None: those of its config.json). They are compared without case, and
    with `_`, `-` and a space as one. Raises UserError where they are not those of the task.
    """
    known = format_list(task.label_names)
    if not task.label_names:
        if given is not None:
            raise UserError(f"--labels names classes, and {task.name} has one score; leave it out")
        scale = f"its one output is taken as the score of {task.name}, from 0 to {MAX_SCORE:g}"
        return dataclasses.replace(imported, labels=(), notes=(*imported.notes, scale))
    names = tuple(given or imported.labels)
    own, wanted = [_normalize_label(name) for name in names], [_normalize_label(name) for name in task.label_names]
    if sorted(own) != sorted(wanted):
        if given is not None:
            raise UserError(f"--labels={','.join(given)}: give {known}, each once, in the order of the checkpoint's outputs")
        raise UserError(
            f"the checkpoint calls its classes {', '.join(names)}, which does not say which of them are {known}; add --labels=..., "
            f"these names of {task.name} with commas between, in the order of the checkpoint's outputs (its model card has it)"
        )
    order = [own.index(name) for name in wanted]
    notes = [] if order == sorted(order) else [f"its classes are {', '.join(names)}; they are put into the order of {task.name}"]
    if (
        given is not None
        and sorted(map(_normalize_label, imported.labels)) == sorted(wanted)
        and own != [*map(_normalize_label, imported.labels)]
    ):
        notes.append(f"--labels goes before its config.json, which says {', '.join(imported.labels)}")
    head = {name: values[..., order] for name, values in imported.params["classification"].items()}
    return dataclasses.replace(
        imported, params=imported.params | {"classification": head}, labels=task.label_names, notes=(*imported.notes, *notes)
    )


def _normalize_label(name: str) -> str:
    return re.sub(r"[\s_-]+", "_", name.strip().casefold())
