"""mhsh predict: the predictions of a trained run on an input, by its kind: labels, answers,
translations, text that goes on, or words in the place of masks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from jaxtyping import Float

from mhsh.cli.parser import Count, RunFolderArgument, StepFlag
from mhsh.config.schema import ClassificationDataConfig, Config, SpanDataConfig
from mhsh.data.glue import find_task, read_glue, write_submission
from mhsh.data.squad import read_squad
from mhsh.data.tables import Examples
from mhsh.data.text_files import read_lines
from mhsh.data.wordpiece import WordPieceTokenizer
from mhsh.errors import NotFinite, UserError
from mhsh.evaluation.glue import predicted_labels
from mhsh.prompts import check_masks, check_values
from mhsh.storage.files import check_new_file, write_new
from mhsh.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from mhsh.inference import LoadedModel

EXAMPLES = (
    "mhsh predict runs/cola/seed-0 --input=test.tsv --output=CoLA.tsv",
    "mhsh predict runs/v2/seed-0 --input=dev-v2.0.json --output=answers.json",
    "mhsh predict runs/tiny --input=lines.txt --output=translated.txt",
    "mhsh predict runs/quickstart/24l1h_admin --text='The module '",
    "mhsh predict runs/3l4h --text='The [MASK] sat.' --top=3",
)
_NOT_OPTIONS = ("folder", "input", "output", "step")  # which every kind of run has
# By model.objective: what a run of it does, and the options that only it has.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": ("labels examples", ()),
    "span": ("answers questions", ("null_threshold",)),
    "translation": ("translates", ("beam", "length_penalty", "batch_tokens", "overlong", "average")),
    "clm": ("writes on", ("text", "max_tokens", "temperature", "top_k", "seed", "average")),
    "mlm": ("fills masks", ("text", "top", "average")),
}


def run(
    folder: RunFolderArgument,
    /,
    *,
    input: str | None = None,
    output: str | None = None,
    text: str | None = None,
    step: StepFlag = None,
    average: Count | None = None,
    null_threshold: float | None = None,
    beam: Count | None = None,
    length_penalty: float | None = None,
    batch_tokens: Count | None = None,
    overlong: Literal["error", "cut"] | None = None,
    max_tokens: Count | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    top: Count | None = None,
) -> int:
    """Applies a trained run to an input, and writes the result.

    - Fine-tuned on GLUE: reads a task's TSV, writes index and prediction of each example.
    - Fine-tuned on SQuAD: reads its JSON, writes an answer by question id, "" for none.
    - Translation: reads lines, writes as many.
    - Causal: reads a text, writes it and what follows.
    - Masked: reads a text with [MASK], writes the likeliest words for each, a line a word.

    Args:
      input: a file, plain or compressed; standard input by default, except for GLUE and SQuAD
      output: a new file; standard output by default, except for GLUE and SQuAD
      text: causal and masked runs: the text itself, in place of --input
      average: not of fine-tuned runs: the mean of the last N checkpoints; 1 by default
      null_threshold: SQuAD 2.0: how much better no answer must score; 0 by default
      beam: translation: hypotheses a sentence; 4 by default
      length_penalty: translation: A of score / length ** A; 0.6 by default
      batch_tokens: translation: source tokens at once; 4096 by default
      overlong: translation: what to do with lines that are too long; error by default
      max_tokens: causal: write at most so many tokens; 50 by default
      temperature: causal: 0 takes the likeliest token; 0.8 by default
      top_k: causal: draw from the so many likeliest tokens; all by default
      seed: causal: equal seeds give equal texts; 0 by default
      top: masked: how many words for each mask; 5 by default
    """
    options = {name: value for name, value in locals().items() if name not in _NOT_OPTIONS and value is not None}
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    _check(folder, config.model.objective, options, input, output)
    check_values(**options)
    if isinstance(config.data, ClassificationDataConfig | SpanDataConfig):
        if input is None or output is None:
            raise UserError(f"mhsh predict {folder} needs --input=FILE and --output=FILE; see mhsh predict --help")
        if isinstance(config.data, ClassificationDataConfig):
            _classify(run_folder, config, config.data, step, input, output)
        else:
            _answer(run_folder, config, config.data, step, input, output, null_threshold)
        return 0
    average, text = options.pop("average", 1), options.pop("text", None)
    lines = read_lines(input) if text is None else [text]
    if config.model.objective == "mlm":
        check_masks("\n".join(lines))
    from mhsh.inference import load

    kinds = {"translation": _translate, "clm": _generate, "mlm": _fill_masks}
    model = load(folder, step=step, average=average)
    _write(kinds[config.model.objective](model, lines, **options), output)
    return 0


def _write(text: str, output: str | None) -> None:
    if output is None:
        sys.stdout.buffer.write(text.encode())
        sys.stdout.buffer.flush()
    else:
        write_new(output, text)


def _check(folder: str, objective: str, options: Mapping[str, Any], source: str | None, output: str | None) -> None:
    does, known = _KINDS[objective]
    for name in options:
        if name not in known:
            flag, others = name.replace("_", "-"), ", ".join(kind for kind, (_, names) in _KINDS.items() if name in names)
            raise UserError(f"--{flag} is for runs of model.objective = {others}; {folder} is one of {objective!r}, which {does}")
    if "text" in options and source is not None:
        raise UserError("--text and --input are both the text; give one of them")
    check_new_file("--output", output)


def _translate(model: LoadedModel, lines: Sequence[str], *, overlong: str = "error", **beam: Any) -> str:
    """Translates each line into a line."""
    translated = model.translate_lines(lines, cut_overlong=overlong == "cut", **beam)
    if translated.num_cut:
        limit = model.config.model.max_positions
        print(f"mhsh predict: {translated.num_cut} lines were cut to model.max_positions = {limit} tokens", file=sys.stderr)
    return "".join(line + "\n" for line in translated.lines)


def _generate(model: LoadedModel, lines: Sequence[str], **options: Any) -> str:
    """The text, and the text that a causal model generates after it."""
    return model.generate("\n".join(lines), **options) + "\n"


def _fill_masks(model: LoadedModel, lines: Sequence[str], **options: Any) -> str:
    """The likeliest words for each mask: a line a word, probability first, with an empty line
    between masks.
    """
    masks = model.fill("\n".join(lines), **options)
    return "\n".join("".join(f"{word.probability:.4f}  {word.token}\n" for word in candidates) for candidates in masks)


def _classify(
    folder: RunFolder, config: Config, data: ClassificationDataConfig, step: int | None, source: str, output: str
) -> None:
    from mhsh.data.fine_tuning import encode_examples
    from mhsh.data.load import load_tokenizer

    task = find_task(data.task)
    examples = read_glue(task, source)
    tokenizer = load_tokenizer(folder, config)
    assert isinstance(tokenizer, WordPieceTokenizer)
    rows, _ = encode_examples(examples, tokenizer, config.model, data)
    labels = predicted_labels(task, _logits(folder, config, step, rows)).tolist()
    write_submission(task, output, [example.index for example in examples], labels)


def _answer(
    folder: RunFolder,
    config: Config,
    data: SpanDataConfig,
    step: int | None,
    source: str,
    output: str,
    null_threshold: float | None,
) -> None:
    from mhsh.data.fine_tuning import encode_questions
    from mhsh.data.load import load_tokenizer
    from mhsh.evaluation.squad import find_answers

    squad = read_squad(source)
    if null_threshold is not None and squad.version != "2.0":
        raise UserError(f"--null-threshold is for SQuAD 2.0, in which a question may have no answer; {source} is {squad.version}")
    tokenizer = load_tokenizer(folder, config)
    assert isinstance(tokenizer, WordPieceTokenizer)
    rows, windows = encode_questions(squad.questions, tokenizer, config.model, data)
    answers = find_answers(squad.questions, windows, _logits(folder, config, step, rows))
    threshold = null_threshold or 0.0 if squad.version == "2.0" else None
    by_id = {question.id: answer.text(threshold) for question, answer in zip(squad.questions, answers, strict=True)}
    write_new(output, json.dumps(by_id, ensure_ascii=False, indent=1) + "\n")


def _logits(folder: RunFolder, config: Config, step: int | None, rows: Examples) -> Float[np.ndarray, "rows ..."]:
    """The logits of every row, without dropout. Raises UserError where one is not finite."""
    import jax

    from mhsh.models.build import forward
    from mhsh.training.checkpoints.restore import load_for_inference

    model, params = load_for_inference(folder, config, step, 1)
    compute = jax.jit(lambda params, batch: forward(model, params, batch, None).logits)
    size, count = config.train.batch_size, len(rows["inputs"])
    # The last batch is filled up with rows from the start, so that one shape is compiled.
    chosen = [np.arange(start, start + size) % count for start in range(0, count, size)]
    parts = [np.asarray(compute(params, {name: values[numbers] for name, values in rows.items()})) for numbers in chosen]
    logits = np.concatenate(parts)[:count]
    broken = np.flatnonzero(~np.isfinite(logits.reshape(count, -1)).all(axis=1))
    if broken.size:
        raise NotFinite(f"{broken.size} of {count} rows, of which the first is number {broken[0] + 1}")
    return logits
