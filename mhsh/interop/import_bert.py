"""A Hugging Face BERT checkpoint as a model section and parameters. Every tensor is checked and
accounted for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec.structs import replace

from mhsh.config.schema import ModelConfig
from mhsh.errors import UserError
from mhsh.interop.bert_config import ARCHITECTURES, CONFIG_FILE, BertConfig, check_classification, read_bert_config
from mhsh.interop.bert_tensors import (
    HEADS,
    OUTPUT_BIAS,
    POOLER,
    TIED_BIAS,
    TIED_KERNEL,
    TOKEN_TABLE,
    Parameter,
    canonical_names,
    each_tensor,
    heads_of,
    nested,
    parameters,
)
from mhsh.interop.weights import Weights, open_weights


@dataclasses.dataclass(frozen=True)
class ImportedBert:
    """A checkpoint, read."""

    model: ModelConfig
    params: dict[str, Any]  # nested as the model's own, fp32; without those of `fresh`
    fresh: tuple[str, ...]  # paths of the parameters that the checkpoint does not give
    left_out: tuple[str, ...]  # tensors that no parameter of the model is made of
    architecture: str  # transformers' class, or what the tensors look like
    labels: tuple[str, ...]  # of the classes by number; empty where there is no classification
    notes: tuple[str, ...]  # what else should be known
    files: tuple[Path, ...]  # that the weights were read from


class _Heads(NamedTuple):
    """The fields of the model section that depend on the heads."""

    objective: str
    next_sentence: bool
    num_classes: int


class _Tensors(NamedTuple):
    """The weights, with the names that `Parameter.name` has."""

    weights: Weights
    names: Mapping[str, str]  # by that name: the name in the file

    def read(self, name: str) -> np.ndarray:
        return self.weights.read(self.names[name])

    def shape(self, name: str) -> tuple[int, ...]:
        return self.weights.shape(self.names[name])


def import_bert(source: Path, base: ModelConfig, *, fresh_heads: bool) -> ImportedBert:
    """Reads the checkpoint in the folder `source`, or the .safetensors file `source` with the
    config.json beside it.

    Args:
      base: gives the fields that a checkpoint knows nothing of: dtypes, remat_policy, scan_unroll.
      fresh_heads: only the body (embeddings, encoder, pooler) is taken; the objective and the heads
        are those of `base`, and their parameters, those of a pooler that the checkpoint lacks
        included, are named in `fresh`.

    Raises:
      UserError: the checkpoint is damaged, pickled, of another architecture, without a head, or of
        another objective than `base`; config.json and the tensors disagree; a tensor is missing or
        belongs nowhere.
    """
    weights = open_weights(source)
    config_path = (source if source.is_dir() else source.parent) / CONFIG_FILE
    there = read_bert_config(config_path)
    tensors = _Tensors(weights, canonical_names(weights.files))
    heads = _heads_of_base(base) if fresh_heads else _heads_there(there, tensors, base, config_path)
    model = replace(base, **there.fields, **heads._asdict())
    fresh = _fresh_parts(model, tensors) if fresh_heads else ()
    taken = [row for row in parameters(model) if row.path.split("/")[0] not in fresh]
    left_out = _left_out(model, tensors, fresh_heads)
    _check_tensors(model, taken, tensors, left_out, config_path)
    if not fresh_heads:
        _check_tied(there, tensors, config_path)
    return ImportedBert(
        model=model,
        params=_read(model, taken, tensors),
        fresh=tuple(row.path for row in parameters(model) if row.path.split("/")[0] in fresh),
        left_out=tuple(sorted(tensors.names[name] for name in left_out)),
        architecture=there.architecture or "BERT",
        labels=there.labels if model.objective == "classification" and not fresh_heads else (),
        notes=there.notes,
        files=tuple(weights.paths),
    )


def _heads_of_base(base: ModelConfig) -> _Heads:
    if base.objective not in ARCHITECTURES.values():
        raise UserError(f"model.objective = {base.objective!r} has no BERT's heads; give a --config of mlm, classification or span")
    return _Heads(base.objective, base.next_sentence, base.num_classes)


def _heads_there(there: BertConfig, tensors: _Tensors, base: ModelConfig, config_path: Path) -> _Heads:
    """By the architecture, or where config.json has none by the tensors. A BertForMaskedLM may have
    the next-sentence head as well: that is how the first BERTs were published.
    """
    found = [head for head, prefix in HEADS.items() if any(name.startswith(prefix) for name in tensors.names)]
    if there.architecture is not None:
        objective = ARCHITECTURES[there.architecture]
    else:
        objectives = {"mlm" if head in ("prediction", "next_sentence") else head for head in found}
        if len(objectives) > 1 or "classification" in objectives:
            # Of a row or of each of its tokens: the tensors look alike.
            raise UserError(
                f"{config_path} has no architectures, and the tensors do not tell which; add one of {', '.join(ARCHITECTURES)}"
            )
        objective = next(iter(objectives), None)
    if objective is None:
        raise UserError(
            f"{config_path.parent} holds a BERT without a head, and mhsh trains none such; with --fresh-heads those of --config "
            "are put on it, drawn as train.seed says"
        )
    if objective != base.objective:
        raise UserError(
            f"{config_path.parent} has the heads of objective {objective!r}, the --config has model.objective = "
            f"{base.objective!r}; give a --config of {objective!r}, or --fresh-heads to take the body alone"
        )
    if objective == "classification":
        check_classification(there, base.num_classes, config_path)
    next_sentence = objective == "mlm" and (there.architecture == "BertForPreTraining" or "next_sentence" in found)
    return _Heads(objective, next_sentence, len(there.labels) if objective == "classification" else 0)


def _fresh_parts(model: ModelConfig, tensors: _Tensors) -> tuple[str, ...]:
    """The parts of the parameter tree that are drawn: all heads, and the pooler where the
    checkpoint has none.
    """
    has_pooler = any(name.startswith(POOLER) for name in tensors.names)
    return tuple(part for part in heads_of(model) if part != "pooler" or not has_pooler)


def _left_out(model: ModelConfig, tensors: _Tensors, fresh_heads: bool) -> set[str]:
    """A pooler that no head reads, and with `fresh_heads` the heads."""
    prefixes = tuple(HEADS.values()) if fresh_heads else ()
    if "pooler" not in heads_of(model):
        prefixes += (POOLER,)
    return {name for name in tensors.names if name.startswith(prefixes)}


def _check_tensors(model: ModelConfig, taken: list[Parameter], tensors: _Tensors, left_out: set[str], config_path: Path) -> None:
    """Every parameter has its tensor, of the shape that config.json gives it; every other tensor is
    one of `left_out`.
    """
    known = set(left_out)
    if "prediction" in heads_of(model):
        known |= {TIED_KERNEL, TIED_BIAS}
    for name, row in each_tensor(model, taken):
        if name not in tensors.names:
            shown = row.full_name.replace("{}", name.split(".")[2]) if row.is_stacked else row.full_name
            raise UserError(
                f"the tensor {shown} {list(row.tensor_shape)} is missing from {config_path.parent}; fetch the whole checkpoint, or "
                f"correct {config_path.name} where it describes another"
            )
        if tensors.shape(name) != row.tensor_shape:
            raise UserError(
                f"the tensor {tensors.names[name]} is {list(tensors.shape(name))}, by {config_path} it would be "
                f"{list(row.tensor_shape)}; fetch both from one place"
            )
        known.add(name)
    unexpected = sorted(tensors.names[name] for name in tensors.names.keys() - known)
    if unexpected:
        more = f" (and {len(unexpected) - 1} more)" if len(unexpected) > 1 else ""
        raise UserError(
            f"the tensor {unexpected[0]}{more} belongs to no parameter of the model that {config_path} describes; give the "
            "checkpoint its own config.json, or --fresh-heads to take the body alone if it is a head's"
        )


def _check_tied(there: BertConfig, tensors: _Tensors, config_path: Path) -> None:
    """The output matrix and its bias, where they are stored a second time, are those that they are
    tied to.
    """
    if OUTPUT_BIAS not in tensors.names:
        return
    if not there.is_tied and TIED_KERNEL not in tensors.names:
        raise UserError(f"{config_path} has tie_word_embeddings = false, but the tensor {TIED_KERNEL} is missing; fetch it")
    for name, original in ((TIED_KERNEL, TOKEN_TABLE), (TIED_BIAS, OUTPUT_BIAS)):
        if name not in tensors.names:
            continue
        if tensors.shape(name) != tensors.shape(original) or not np.array_equal(tensors.read(name), tensors.read(original)):
            raise UserError(
                f"the tensor {name} differs from {tensors.names[original]}; mhsh's output matrix is the token table, so that this "
                "checkpoint would compute something else"
            )


def _read(model: ModelConfig, taken: list[Parameter], tensors: _Tensors) -> dict[str, Any]:
    flat: dict[str, np.ndarray] = {}
    for row in taken:
        if row.is_stacked:
            flat[row.path] = np.empty((model.num_layers, *row.shape), np.float32)
            for layer in range(model.num_layers):
                flat[row.path][layer] = row.from_tensor(tensors.read(row.name.format(layer)))
        else:
            flat[row.path] = np.ascontiguousarray(row.from_tensor(tensors.read(row.name)))
    return nested(flat)
