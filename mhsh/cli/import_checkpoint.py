"""mhsh import: a Hugging Face checkpoint as a run folder with a checkpoint of step 0."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from msgspec.structs import replace

from mhsh.cli.finetune import over_encoder
from mhsh.cli.parser import ConfigFlag, TaskFlag
from mhsh.config.resolve import from_dict
from mhsh.config.schema import (
    AnyDataConfig,
    ClassificationDataConfig,
    Config,
    DataConfig,
    MeshConfig,
    TranslationDataConfig,
    to_dict,
)
from mhsh.config.shapes import shape_in_words
from mhsh.data.glue import find_task
from mhsh.data.wordpiece import Tokenizer, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.files import check_new_folder, new_folder
from mhsh.interop.import_bert import import_bert
from mhsh.interop.llama import import_llama, is_llama
from mhsh.interop.tensors import Imported
from mhsh.interop.vocabulary import read_tokenizer, read_vocabulary
from mhsh.run_folder import WORDPIECE_FILE, RunFolder

# Beside config.json: the checkpoint's files with their SHA-256, and what was not taken from it.
RECORD_FILE = "imported.json"


EXAMPLES = (
    "mhsh import bert-base-uncased --config=bert:12l12h --out=runs/imported",
    "mhsh import bert-cola --config=bert:12l12h --task=glue:cola --out=runs/cola",
    "mhsh import exported --config=gpt:6l4h --out=runs/imported",
)


def run(
    source: Annotated[str, Parameter(name="SRC")],
    /,
    *,
    config: ConfigFlag,
    task: TaskFlag = None,
    out: str,
    fresh_heads: bool = False,
) -> int:
    """Makes a run folder of a Hugging Face checkpoint: a BERT, or a Llama or Qwen3.

    Args:
      source: a folder with config.json and safetensors, or the .safetensors file in it
      out: the run folder, new
      fresh_heads: take the body of a BERT alone (embeddings, encoder, pooler) and put fresh heads
        on it

    Raises:
      UserError: as `import_bert` or `import_llama`, or the vocabulary is missing, does not fit, or
        is another tokenizer's; `out` is not new.
    """
    check_new_folder(out)
    if task is not None:
        config = _for_task(config, task)
    folder = Path(source) if Path(source).is_dir() else Path(source).parent
    if is_llama(folder):
        if fresh_heads:
            raise UserError(f"--fresh-heads takes the body of a BERT; {folder} is a language model, which is imported whole")
        imported = import_llama(Path(source), config.model)
    else:
        imported = import_bert(Path(source), config.model, fresh_heads=fresh_heads)
    resolved, tokenizer = _resolve(config, imported, folder)
    _check_labels(resolved, imported)
    with new_folder(out) as unfinished:
        run_folder = RunFolder.open_for_training(unfinished, resolved)
        tokenizer.save(unfinished / WORDPIECE_FILE)
        _save(run_folder, resolved, imported)
        (unfinished / RECORD_FILE).write_text(json.dumps(_record(source, imported), indent=2) + "\n", encoding="utf-8")
    _print(resolved, imported, source, out)
    return 0


def _for_task(config: Config, fields: Mapping[str, Any]) -> Config:
    """The config with the sections of a task over its own; the vocabulary is its own."""
    data = config.data
    if not isinstance(data, DataConfig):
        raise UserError("--task goes over a --config for pre-training, such as bert:12l12h; give one")
    complete = over_encoder(fields, config.model, data.vocab_path, data.lowercase)
    complete["train"] = to_dict(config.train) | complete.get("train", {})
    return from_dict(complete)


def _resolve(config: Config, imported: Imported, folder: Path) -> tuple[Config, Tokenizer]:
    """The config with what the checkpoint decides, and its tokenizer: that of data.vocab_path where
    a BERT has none.
    """
    data = config.data
    assert not isinstance(data, TranslationDataConfig), "no such model is imported"
    if imported.model.objective == "clm":
        assert isinstance(data, DataConfig), "import_llama has seen the objective"
        tokenizer = read_tokenizer(folder)
        words = isinstance(tokenizer, WordPieceTokenizer)
        data = replace(data, tokenizer="wordpiece" if words else "bytes", lowercase=words and tokenizer.lowercase, vocab_path="")
        return _fitting(config, imported, data, tokenizer)
    vocabulary = read_vocabulary(folder)
    if isinstance(data, DataConfig):
        data = replace(data, tokenizer="wordpiece")
    if vocabulary is not None:
        lowercase = data.lowercase if vocabulary.lowercase is None else vocabulary.lowercase
        data = replace(data, lowercase=lowercase, vocab_path="")
        tokenizer = WordPieceTokenizer(vocabulary.tokens, lowercase)
    elif data.vocab_path:
        tokenizer = load_wordpiece(Path(data.vocab_path).expanduser(), data.lowercase)
    else:
        raise UserError(
            f"{folder} holds no vocab.txt and no tokenizer.json; put one there, or name one with --config.data.vocab_path"
        )
    return _fitting(config, imported, data, tokenizer)


def _fitting(config: Config, imported: Imported, data: AnyDataConfig, tokenizer: Tokenizer) -> tuple[Config, Tokenizer]:
    if tokenizer.vocab_size > imported.model.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} tokens, the checkpoint's token table {imported.model.vocab_size}; give the "
            "vocabulary that the checkpoint was trained with"
        )
    resolved = replace(config, model=imported.model, data=data)
    return from_dict(to_dict(resolved)), tokenizer


def _check_labels(config: Config, imported: Imported) -> None:
    """Where the checkpoint names its classes, they are those of the task, in its order."""
    if not isinstance(config.data, ClassificationDataConfig) or not imported.labels:
        return
    task = find_task(config.data.task)
    if len(task.label_names) < 2 or all(label == f"LABEL_{number}" for number, label in enumerate(imported.labels)):
        return
    if [label.lower() for label in imported.labels] != [label.lower() for label in task.label_names]:
        raise UserError(
            f"the checkpoint's classes are {', '.join(imported.labels)}, those of data.task = {task.name!r} "
            f"{', '.join(task.label_names)}; put id2label and the rows of classifier.weight and classifier.bias in order first"
        )


def _save(folder: RunFolder, config: Config, imported: Imported) -> None:
    """The state at step 0: as training would create it, with the parameters of the checkpoint in
    their places.
    """
    import jax

    from mhsh.models.build import build_model
    from mhsh.training.checkpoints.checkpoint import Checkpoints
    from mhsh.training.mesh import make_mesh
    from mhsh.training.optimizer import build_optimizer
    from mhsh.training.state import create_state

    single = replace(config, mesh=MeshConfig(data=1, fsdp=1, tensor=1))
    mesh = make_mesh(single, jax.devices()[:1])
    model, optimizer = build_model(config.model), build_optimizer(config)
    created = create_state(single, model, optimizer, mesh, {})  # not Admin: no batch is looked at
    theirs = {name: created.params[name] for name in imported.params}  # whole parts of the model
    taken = jax.tree.map(lambda new, old: jax.device_put(np.asarray(new), old.sharding), imported.params, theirs)
    state = created._replace(params=created.params | taken)
    checkpoints = Checkpoints(folder.checkpoints_path, keep=1, keep_every=0)
    with contextlib.closing(checkpoints):  # waits for what is being written, even when interrupted
        checkpoints.save(0, state)


def _record(source: str, imported: Imported) -> dict[str, Any]:
    files = {}
    for path in imported.files:
        with open(path, "rb") as file:
            files[path.name] = hashlib.file_digest(file, "sha256").hexdigest()
    return {
        "source": source,
        "architecture": imported.architecture,
        "sha256": files,
        "labels": imported.labels,
        "fresh": imported.fresh,
        "left_out": imported.left_out,
    }


def _print(config: Config, imported: Imported, source: str, out: str) -> None:
    from mhsh.models.costs import parameter_counts

    model = config.model
    print(
        f"{out}: {imported.architecture} of {source}, {shape_in_words(model)} of {model.head_dim}, "
        f"D = {model.embed_dim}, F = {model.mlp_dim}, {parameter_counts(model)['total']:,} parameters, objective {model.objective}"
    )
    for note in imported.notes:
        print(f"note: {note}")
    if imported.labels:
        print(f"classes: {', '.join(imported.labels)}")
    if imported.left_out:
        print(f"left out, as nothing reads them: {', '.join(imported.left_out)}")
    if imported.fresh:
        print(f"drawn fresh by train.seed = {config.train.seed}: {', '.join(imported.fresh)}")
    if isinstance(config.data, DataConfig):
        print(f"to train it further: mhsh train --workdir={out}")
