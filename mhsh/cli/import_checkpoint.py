"""mhsh import: a Hugging Face checkpoint as a run folder with a checkpoint of step 0."""

from __future__ import annotations

import contextlib
import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from cyclopts import Parameter
from msgspec.structs import replace

from mhsh.cli.finetune import merge_encoder
from mhsh.cli.parser import ConfigFields, ConfigFieldsFlag, TaskFlag
from mhsh.config.entries import entry_flags, named_entries
from mhsh.config.fields import SHAPING, parse_value
from mhsh.config.resolve import from_dict
from mhsh.config.schema import ClassificationDataConfig, Config, DataConfig, TranslationDataConfig, to_dict
from mhsh.config.shapes import shape_in_words
from mhsh.configs import override
from mhsh.data.glue import find_task
from mhsh.data.wordpiece import Tokenizer, WordPieceTokenizer, load_wordpiece
from mhsh.errors import UserError
from mhsh.interop.describe import describe_checkpoint
from mhsh.interop.import_bert import import_bert, reorder_for_task
from mhsh.interop.llama import import_llama, is_llama
from mhsh.interop.tensors import ImportedCheckpoint
from mhsh.interop.vocabulary import read_tokenizer, read_vocabulary
from mhsh.interop.weights import checkpoint_folder
from mhsh.storage.files import check_new_folder, expand_user, new_folder
from mhsh.storage.imported import IMPORTED_FILE
from mhsh.storage.run_folder import WORDPIECE_FILE, RunFolder

# The run starts from the checkpoint, and from no other run, as that of a second phase would.
_START = (("train.start_from", ""), ("train.keep_moments", False))

EXAMPLES = (
    "mhsh import bert-base-uncased --config=bert:12l12h --out=runs/imported",
    "mhsh import bert-cola --config=bert:12l12h --task=glue:cola --out=runs/cola",
    "mhsh import exported --config=gpt:6l4h --out=runs/imported",
)


def run(
    source: Annotated[str, Parameter(name="SRC")],
    /,
    *,
    config: ConfigFieldsFlag,
    task: TaskFlag | None = None,
    out: str,
    fresh_heads: bool = False,
    labels: str | None = None,
) -> int:
    """Makes a run folder of a Hugging Face checkpoint: a BERT, or a Llama or Qwen3.

    Args:
      source: a folder with config.json and safetensors, or the .safetensors file in it
      out: the run folder, new
      fresh_heads: take the body of a BERT alone (embeddings, encoder, pooler) and put fresh heads
        on it
      labels: the task's labels, A,B,..., in the order of the checkpoint's outputs, where its
        config.json does not name them
    """
    check_new_folder(out)
    requested = _merge_task(config, task)
    folder = checkpoint_folder(source)
    description = _print_description(folder)
    if is_llama(folder):
        if fresh_heads:
            raise UserError(f"--fresh-heads takes the body of a BERT; {folder} is a language model, which is imported whole")
        read_tokenizer(folder)  # most Llamas have another than mhsh's: it is said before GiBs of weights are read
        imported = import_llama(Path(source), requested.model)
    else:
        imported = import_bert(Path(source), requested.model, fresh_heads=fresh_heads)
    imported = _reorder_classes(imported, requested, labels)
    resolved, tokenizer = _resolve(requested, imported, folder)
    for changed in filter(None, (config, task)):
        changed.check_overrides(resolved, "the checkpoint" if task is None else "the checkpoint or the other flag")
    with new_folder(out) as unfinished:
        run_folder = RunFolder.open_for_training(unfinished, resolved)
        tokenizer.save(unfinished / WORDPIECE_FILE)
        _save(run_folder, resolved, imported)
        (unfinished / IMPORTED_FILE).write_text(json.dumps(_record(source, imported), indent=2) + "\n", encoding="utf-8")
    _print(resolved, imported, source, out, config.fields["model"]["max_positions"], description)
    return 0


def _print_description(folder: Path) -> list[str]:
    """Prints the lines of `mhsh inspect`, and returns them. What cannot be described is refused by
    the import, by the same reader.
    """
    description: list[str] = []
    with contextlib.suppress(UserError):
        for line in describe_checkpoint(folder):
            print(line, flush=True)
            description.append(line)
    return description


def _merge_task(config: ConfigFields, task: ConfigFields | None) -> Config:
    """The config of the command; for a checkpoint with a head for a task, the sections of the task
    over those of --config, whose overrides go over both.
    """
    model = config.fields.get("model")
    is_whole = isinstance(model, Mapping) and "max_positions" in model  # of another one from_dict says what is missing
    for path, _ in config.changes:
        if path in SHAPING:
            raise UserError(f"--config.{path} changes the shape of a fresh model; a checkpoint keeps its own: leave it out")
    # The positions are the checkpoint's: until it is read, there are enough for any rows.
    fields = override(config.fields, [("model.max_positions", 2**31 - 1), *_START], "--config.") if is_whole else config.fields
    base = from_dict(fields)
    if task is None:
        return base
    if not isinstance(base.data, DataConfig):
        raise UserError("--task goes over a --config for pre-training, such as bert:12l12h; give one")
    complete = merge_encoder(task.fields, base.model, base.data.vocab_path, base.data.lowercase)
    complete["train"] = to_dict(base.train) | complete.get("train", {})
    changes = [(path, parse_value(path, text)) for path, text in config.changes if not path.startswith("model.")]
    return from_dict(override(complete, [*changes, *_START], "--config."))


def _reorder_classes(imported: ImportedCheckpoint, config: Config, labels: str | None) -> ImportedCheckpoint:
    """Puts the classes of the checkpoint into the order of the task, where it has the task's head.
    Raises UserError where --labels is given and there is no such head.
    """
    if isinstance(config.data, ClassificationDataConfig) and "classification" in imported.params:
        return reorder_for_task(imported, find_task(config.data.task), None if labels is None else labels.split(","))
    if labels is not None:
        raise UserError("--labels names the classes of a head for GLUE; add --task=glue:TASK, or leave it out")
    return imported


def _resolve(config: Config, imported: ImportedCheckpoint, folder: Path) -> tuple[Config, Tokenizer]:
    """The config with what the checkpoint decides, and its tokenizer: that of data.vocab_path where
    a BERT has none.
    """
    data = config.data
    assert not isinstance(data, TranslationDataConfig), "no such model is imported"
    tokenizer: Tokenizer
    if imported.model.objective == "clm":
        assert isinstance(data, DataConfig), "import_llama has seen the objective"
        tokenizer = read_tokenizer(folder)
        words = isinstance(tokenizer, WordPieceTokenizer)
        data = replace(data, tokenizer="wordpiece" if words else "bytes", lowercase=words and tokenizer.lowercase, vocab_path="")
    else:
        vocabulary = read_vocabulary(folder)
        if isinstance(data, DataConfig):
            data = replace(data, tokenizer="wordpiece")
        if vocabulary is not None:
            lowercase = data.lowercase if vocabulary.lowercase is None else vocabulary.lowercase
            data = replace(data, lowercase=lowercase, vocab_path="")
            tokenizer = WordPieceTokenizer(vocabulary.tokens, lowercase)
        elif data.vocab_path:
            tokenizer = load_wordpiece(expand_user(data.vocab_path), data.lowercase)
        else:
            raise UserError(f"{folder} holds no vocab.txt and no tokenizer.json; put one there, or set --config.data.vocab_path")
    if tokenizer.vocab_size > imported.model.vocab_size:
        raise UserError(
            f"the vocabulary has {tokenizer.vocab_size} tokens, the checkpoint's token table {imported.model.vocab_size}; give the "
            "vocabulary that the checkpoint was trained with"
        )
    positions = imported.model.max_positions
    if data.sequence_length > positions:
        raise UserError(
            f"the checkpoint has {positions} positions, fewer than data.sequence_length = {data.sequence_length}; "
            f"add --config.data.sequence_length={positions}"
        )
    return from_dict(to_dict(replace(config, model=imported.model, data=data))), tokenizer


def _save(folder: RunFolder, config: Config, imported: ImportedCheckpoint) -> None:
    """Saves step 0: the state of a fresh run with the checkpoint's parameters in their places."""
    import jax

    from mhsh.models.build import build_model
    from mhsh.training.checkpoints.checkpoint import Checkpoints
    from mhsh.training.mesh import first_device
    from mhsh.training.optimizer import build_optimizer
    from mhsh.training.state import create_state

    model, optimizer = build_model(config.model), build_optimizer(config)
    created = create_state(config, model, optimizer, first_device(), {})  # not Admin: no batch is looked at
    theirs = {name: created.params[name] for name in imported.params}  # whole parts of the model
    taken = jax.tree.map(lambda new, old: jax.device_put(np.asarray(new), old.sharding), imported.params, theirs)
    state = created._replace(params=created.params | taken)
    checkpoints = Checkpoints(folder.checkpoints_path, keep=1)
    with contextlib.closing(checkpoints):  # waits for what is being written, even when interrupted
        checkpoints.save(0, state)


def _record(source: str, imported: ImportedCheckpoint) -> dict[str, Any]:
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
        "notes": imported.notes,
    }


def _print(
    config: Config, imported: ImportedCheckpoint, source: str, out: str, asked_positions: int, description: Sequence[str]
) -> None:
    from mhsh.models.costs import parameter_counts

    model = config.model
    print(
        f"{out}: {imported.architecture} of {source}, {shape_in_words(model)} of {model.head_dim}, "
        f"D = {model.embed_dim}, F = {model.mlp_dim}, {parameter_counts(model)['total']:,} parameters, objective {model.objective}"
    )
    if model.max_positions != asked_positions:
        print(
            f"note: the checkpoint has {model.max_positions} positions, the config {asked_positions}; rows have "
            f"data.sequence_length = {config.data.sequence_length} tokens"
        )
    for note in imported.notes:
        if note not in description:
            print(f"note: {note}")
    if imported.labels:
        print(f"classes: {', '.join(imported.labels)}")
    if imported.left_out:
        print(f"left out, as nothing reads them: {', '.join(imported.left_out)}")
    if imported.fresh:
        print(f"drawn fresh by train.seed = {config.train.seed}: {', '.join(imported.fresh)}")
    if isinstance(config.data, DataConfig):
        print(f"to train it further: mhsh train --workdir={shlex.quote(out)}{entry_flags(named_entries(config))}")
