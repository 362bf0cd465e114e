"""A Hugging Face BERT checkpoint as a model section and parameters. Every tensor is accounted
for.
"""

from __future__ import annotations

from pathlib import Path

from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.interop.bert_config import EXPORTABLE, PRETRAINED, BertConfig, check_fields, read_bert_config
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
from mhsh.interop.tensors import Imported, Tensors, check_tensors, read_params
from mhsh.interop.weights import CONFIG_FILE, importing, open_weights
from mhsh.storage.questions import is_dir


def import_bert(source: Path, base: ModelConfig, *, fresh_heads: bool) -> Imported:
    """Reads the checkpoint in the folder `source`, or the .safetensors file `source` with the
    config.json beside it; `base` gives the fields that a checkpoint knows nothing of.

    With `fresh_heads` the body (embeddings, encoder, pooler) alone is taken. The heads are those of
    `base`, and `fresh` names their parameters, and those of a pooler that is not there. Raises
    UserError where `base` is no masked model; the checkpoint is damaged, pickled, of another
    architecture or without heads of pre-training; a tensor is missing, belongs nowhere or is not as
    config.json says.
    """
    files = open_weights(source)
    config, notes = read_bert_config((source if is_dir(source) else source.parent) / CONFIG_FILE)
    tensors = Tensors(canonical_names(files), files)
    with importing(source, "give --config, config.json and weights of one model, or take its body alone with --fresh-heads"):
        if base.objective != "mlm":
            raise ValueError(f"it is a masked language model, the --config has model.objective = {base.objective!r}")
        next_sentence = base.next_sentence if fresh_heads else _has_next_sentence(config, tensors)
        model = replace(base, **config.fields, next_sentence=next_sentence)
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
        notes=notes,
        files=tuple(sorted({file.path for file in files.values()})),
    )


def _has_next_sentence(config: BertConfig, tensors: Tensors) -> bool:
    """Whether a checkpoint has the next-sentence head, by its architecture or by its tensors. A
    BertForMaskedLM may have it as well: that is how the first BERTs were published.
    """
    prefixes = HEADS["prediction"], HEADS["next_sentence"]
    prediction, next_sentence = (any(name.startswith(prefix) for name in tensors.names) for prefix in prefixes)
    if config.architecture not in (None, *PRETRAINED) or (config.architecture is None and not prediction):
        raise ValueError(f"it is a {config.architecture or 'BERT'} without the heads of pre-training, which mhsh imports alone")
    return next_sentence or config.architecture == "BertForPreTraining"


def _check_tied(config: BertConfig, tensors: Tensors) -> None:
    """The output matrix and its bias, where they are stored, are those that they are tied to."""
    if OUTPUT_BIAS not in tensors.names:
        return
    if config.tie_word_embeddings is False and TIED_KERNEL not in tensors.names:
        raise ValueError(f"config.json has tie_word_embeddings = false, but the tensor {TIED_KERNEL} is missing")
    for name, original in ((TIED_KERNEL, TOKEN_TABLE), (TIED_BIAS, OUTPUT_BIAS)):
        if name in tensors.names and not tensors.equal(name, original):
            raise ValueError(f"the tensor {name} differs from {tensors.names[original]}, which mhsh takes instead")
