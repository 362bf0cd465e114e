"""mhsh inspect: a description of a corpus, a checkpoint, a run or a sweep as mhsh reads it, before
it is used.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Iterator
from typing import Annotated

from cyclopts import Parameter
from etils import epath

from mhsh.config.entries import SOURCES, entry_flags, named_entries
from mhsh.config.registry import WITH
from mhsh.config.schema import Config
from mhsh.config.shapes import shape_in_words
from mhsh.data.intake import HEAD_CHARACTERS, SAMPLE_CHARACTERS, describe_source, source_for
from mhsh.data.wordpiece import load_wordpiece
from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import absolute, expand_user, read_object
from mhsh.storage.questions import exists, is_dir, paths_in
from mhsh.storage.run_folder import CONFIG_FILE, RunFolder, committed_steps
from mhsh.sweep.folder import ENDED, PLAN_FILE, WAITING, SweepFolder
from mhsh.text import format_list, format_names

EXAMPLES = (
    "mhsh inspect corpus",
    "mhsh inspect 'jsonl:dump/*.jsonl.zst:text'",
    "mhsh inspect lines:a.txt --vocab=vocab.txt",
    "mhsh inspect bert-base-uncased",
    "mhsh inspect runs/2l8h",
)


def run(what: Annotated[str, Parameter(name="SOURCE|DIR|FILE")], /, *, vocab: str | None = None, lowercase: bool = False) -> int:
    """Describes a source, a checkpoint, a run or a sweep as mhsh reads it.

    Of a source: its form, its documents and what looks wrong. Of a Hugging Face checkpoint: its
    shape, classes and tokenizer. Of a run: its config and checkpoints. Of a sweep: what has run.

    Args:
      what: what data.source takes, a file, or a folder of texts, a checkpoint, a run or a sweep
      vocab: of a source: a vocab.txt, to count the characters that it does not know
      lowercase: that vocabulary has no upper case
    """
    if lowercase and vocab is None:
        raise UserError("--lowercase goes with --vocab, the vocabulary that has no upper case")
    if (what.partition(":")[0] in SOURCES and ":" in what) or what in SOURCES:
        lines = _describe_source(what, vocab, lowercase)
    else:
        if not exists(expand_user(what)):
            raise UserError(
                f"{what} does not exist; name a file, a folder, a source such as 'text:corpus/*.txt' (mhsh configs), or add your "
                f"own ({WITH})"
            )
        lines = _describe_folder(what, vocab, lowercase)
    for line in lines:
        print(line, flush=True)
    return 0


def source_lines(config: Config) -> Iterator[str]:
    """The description of a config's data.source, for the head of a command, from its first
    documents; no lines where the source is not of files.
    """
    kind = SOURCES.get(config.data.source.partition(":")[0])
    if config.model.objective in ("mlm", "clm") and kind is not None and kind.in_folder:
        yield from describe_source(config.data.source, HEAD_CHARACTERS)


def run_summary(config: Config) -> str:
    """`3 layers x 4 heads (admin, D = 64), mlm on stdlib, 1,000 steps of 32 x 32 tokens`."""
    model, train, data = config.model, config.train, config.data
    shape = f"{shape_in_words(model)} ({model.residual}, D = {model.embed_dim})"
    steps = f"{train.num_steps:,} steps of {train.batch_size:,} x {data.sequence_length:,} tokens"
    return f"{shape}, {model.objective} on {data.source}, {steps}"


def _describe_source(source: str, vocab: str | None, lowercase: bool) -> Iterator[str]:
    tokenizer = None if vocab is None else load_wordpiece(expand_user(vocab), lowercase)
    yield from describe_source(source, SAMPLE_CHARACTERS, tokenizer)
    files = entry_flags([(SOURCES, source.partition(":")[0])])
    yield f"to train on it: mhsh train --config=bert:3l4h --config.data.source={shlex.quote(source)} --workdir=runs/mine{files}"


def _describe_folder(what: str, vocab: str | None, lowercase: bool) -> Iterator[str]:
    path = expand_user(what)
    is_sweep = exists(path / PLAN_FILE) and is_dir(path / "runs")
    if is_sweep or exists(path / CONFIG_FILE):
        if vocab is not None:
            is_a = "a sweep" if is_sweep else "a run or a checkpoint"
            raise UserError(f"--vocab is for a source, and {what} is {is_a}; leave it out")
        yield from _describe_sweep(path) if is_sweep else _describe_config(path)
        return
    # In a bucket each file would be asked for.
    beside = [] if is_remote(path) else [child for child in paths_in(path) if is_dir(child) and RunFolder(child).has_begun()]
    if beside:
        names = format_names([child.name for child in beside])
        raise UserError(f"{what} holds runs: {names}; name one of them, or compare all: mhsh compare {shlex.quote(what)}")
    yield from _describe_source(source_for(what), vocab, lowercase)


def _describe_sweep(path: epath.Path) -> Iterator[str]:
    from mhsh.cli.selection import CellSelection  # it needs scipy, which takes a while

    folder = SweepFolder(path)
    plan = folder.read_plan()
    kinds = {cell.name: folder.state(cell.name).kind for cell in plan.cells}
    # A sweep that chooses a value never trains the cells at the others.
    needed = CellSelection(folder)(plan, [name for name, kind in kinds.items() if kind in ENDED])
    states = Counter(kinds[name] for name in needed)
    swept, counted = format_list([axis.name for axis in plan.axes]), format_list([f"{states[kind]} {kind}" for kind in states])
    yield f"{absolute(path).name}: a sweep of {swept}, {len(needed):,} runs: {counted}"
    if states.keys() - set(ENDED):
        yield f"to go on: mhsh work {folder.arguments()}"
    if states.keys() - {WAITING}:
        yield f"to compare what has run: mhsh compare {folder.arguments()}"


def _describe_config(path: epath.Path) -> Iterator[str]:
    """Describes the checkpoint or the run of this config.json."""
    if "model_type" not in read_object(path / CONFIG_FILE):
        yield from _describe_run(RunFolder(path))
        return
    from mhsh.interop.describe import describe_checkpoint, import_flags
    from mhsh.interop.weights import checkpoint_folder

    folder = checkpoint_folder(str(path))
    yield from describe_checkpoint(folder)
    yield f"to import it: mhsh import {shlex.quote(str(path))} {import_flags(folder)} --out=runs/imported"


def _describe_run(folder: RunFolder) -> Iterator[str]:
    config = folder.read_config()
    steps, named = committed_steps(folder.checkpoints_path), shlex.quote(str(folder.path))
    named += entry_flags(named_entries(config), folder.run_record())
    yield f"{folder.name}: {run_summary(config)}"
    if not steps:
        yield f"no checkpoint; train it: mhsh train --workdir={named}"
        return
    yield f"checkpoints of the steps {format_list([f'{step:,}' for step in steps])}"
    more = f"mhsh train --workdir={named}" if steps[-1] < config.train.num_steps else f"mhsh eval {named}"
    yield f"to go on: {more}"
