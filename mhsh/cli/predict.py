"""mhsh predict: what a trained run makes of an input, by its kind: labels, answers, translations,
text that goes on, or words in the place of masks.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float

from mhsh.cli.flags import RunFolderArgument, StepFlag
from mhsh.config.schema import ClassificationDataConfig, Config, SpanDataConfig
from mhsh.data.fine_tuning.glue import find_task, read_glue, write_submission
from mhsh.data.fine_tuning.squad import read_squad
from mhsh.data.tables import Examples
from mhsh.data.text_files import read_lines
from mhsh.errors import UserError
from mhsh.evaluation.glue import predicted_labels
from mhsh.files import write_new
from mhsh.run_folder import RunFolder, vocab_file

EXAMPLES = (
    "mhsh predict runs/cola/seed-0 --input=test.tsv --output=CoLA.tsv",
    "mhsh predict runs/v2/seed-0 --input=dev-v2.0.json --output=answers.json",
    "mhsh predict runs/tiny --input=lines.txt --output=translated.txt",
    "mhsh predict runs/quickstart/24l1h_admin --text='The module '",
    "mhsh predict runs/2l8h --text='The [MASK] sat.' --top=3",
)
# By model.objective: what a run of it does, and the options that only it has.
_KINDS: dict[str, tuple[str, tuple[str, ...]]] = {
    "classification": ("labels examples", ()),
    "span": ("answers questions", ("null_threshold", "details")),
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
    average: int | None = None,
    null_threshold: float | None = None,
    details: str | None = None,
    beam: int | None = None,
    length_penalty: float | None = None,
    batch_tokens: int | None = None,
    overlong: Literal["error", "cut"] | None = None,
    max_tokens: int | None = None,
    temperature: float | None = None,
    top_k: int | None = None,
    seed: int | None = None,
    top: int | None = None,
) -> int:
    """Gives a trained run an input, and writes what it makes of it.

    - Fine-tuned on GLUE: reads a task's TSV, writes index and prediction of each example.
    - Fine-tuned on SQuAD: reads its JSON, writes an answer by question id, "" for none.
    - Translation: reads lines, writes as many.
    - Causal: reads a text, writes it and what follows.
    - Masked: reads a text with [MASK], writes the likeliest words for each, a line a word.

    Args:
      input: a file, plain or .gz; standard input by default, but for GLUE and SQuAD
      output: a new file; standard output by default, but for GLUE and SQuAD
      text: causal and masked runs: the text itself, in place of --input
      average: not of fine-tuned runs: the mean of the last N checkpoints; 1 by default
      null_threshold: SQuAD 2.0: how much better no answer must score; 0 by default
      details: SQuAD: a new file for the n-best answers and what --null-threshold is compared with
      beam: translation: hypotheses a sentence; 4 by default
      length_penalty: translation: A of score / length ** A; 0.6 by default
      batch_tokens: translation: source tokens at once; 4096 by default
      overlong: translation: what to do with lines that are too long; error by default
      max_tokens: causal: write at most so many tokens; 50 by default
      temperature: causal: 0 takes the likeliest token; 0.8 by default
      top_k: causal: draw from the so many likeliest tokens; all by default
      seed: causal: equal seeds give equal texts; 0 by default
      top: masked: how many words for each mask; 5 by default

    Raises:
      UserError: an option is of another kind of run, the input is not what the run reads, or
        `output` or `details` exists.
    """
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    objective = config.model.objective
    given = {
        "text": text,
        "average": average,
        "null_threshold": null_threshold,
        "details": details,
        "beam": beam,
        "length_penalty": length_penalty,
        "batch_tokens": batch_tokens,
        "overlong": overlong,
        "max_tokens": max_tokens,
        "temperature": temperature,
        "top_k": top_k,
        "seed": seed,
        "top": top,
    }
    options = {name: value for name, value in given.items() if value is not None}
    _check(folder, objective, options, input, output)
    if objective in ("classification", "span"):
        assert input is not None and output is not None
        if isinstance(config.data, ClassificationDataConfig):
            _classify(run_folder, config, config.data, input, output, step)
        elif isinstance(config.data, SpanDataConfig):
            _answer(run_folder, config, config.data, input, output, step, null_threshold or 0.0, details)
        return 0
    written = (_translated if objective == "translation" else _text)(folder, config, input, step, options)
    if output is None:
        sys.stdout.buffer.write(written.encode())
        sys.stdout.buffer.flush()
    else:
        write_new(output, written)
    return 0


def _check(folder: str, objective: str, options: Mapping[str, Any], source: str | None, output: str | None) -> None:
    does, known = _KINDS[objective]
    for name in options:
        if name not in known:
            flag, others = name.replace("_", "-"), ", ".join(kind for kind, (_, names) in _KINDS.items() if name in names)
            raise UserError(f"--{flag} is for runs of model.objective = {others}; {folder} is one of {objective!r}, which {does}")
    if objective in ("classification", "span") and (source is None or output is None):
        raise UserError(f"{folder} {does}: mhsh predict needs --input=FILE and --output=FILE; see mhsh predict --help")
    if "text" in options and source is not None:
        raise UserError("--text and --input are both the text; give one of them")
    for path in (output, options.get("details")):
        if path is None:
            continue
        if Path(path).exists():
            raise UserError(f"{path} exists; choose another name, or remove it first")
        if not Path(path).absolute().parent.is_dir():
            raise UserError(f"there is no folder {Path(path).parent} for {path}; make it first")


def _translated(folder: str, config: Config, source: str | None, step: int | None, options: Mapping[str, Any]) -> str:
    """The translation of each line, a line each."""
    from mhsh.inference import check_beam, load

    beam = {name: options[name] for name in ("beam", "length_penalty", "batch_tokens") if name in options}
    check_beam(**beam)  # before the checkpoint is read
    lines = read_lines(source)
    model = load(folder, step=step, average=options.get("average", 1))
    translated = model.translate_lines(lines, **beam, cut_overlong=options.get("overlong") == "cut")
    if translated.num_cut:
        print(
            f"mhsh predict: {translated.num_cut} lines were cut to model.max_positions = {config.model.max_positions} tokens",
            file=sys.stderr,
        )
    return "".join(line + "\n" for line in translated.lines)


def _text(folder: str, config: Config, source: str | None, step: int | None, options: Mapping[str, Any]) -> str:
    """The text and what a causal model writes after it; or, by a masked one, a line a word,
    probability first, with an empty line between masks.
    """
    from mhsh.inference import check_fill, check_sampling, load

    own = {name: value for name, value in options.items() if name not in ("text", "average")}
    causal = config.model.objective == "clm"
    if causal:
        check_sampling(**own)  # before anything is read
    text = options["text"] if "text" in options else "\n".join(read_lines(source))
    if not causal:
        check_fill(text, **own)
    model = load(folder, step=step, average=options.get("average", 1))
    if causal:
        return model.generate(text, **own) + "\n"
    words = ("".join(f"{word.probability:.4f}  {word.token}\n" for word in candidates) for candidates in model.fill(text, **own))
    return "\n".join(words)


def _classify(
    folder: RunFolder, config: Config, data: ClassificationDataConfig, source: str, output: str, step: int | None
) -> None:
    from mhsh.data.fine_tuning.classification import encode_examples
    from mhsh.data.fine_tuning.task import load_vocabulary
    from mhsh.training.checkpoints.restore import load_for_inference

    task = find_task(data.task)
    examples = read_glue(task, source)
    tokenizer = load_vocabulary(config.model, data, folder.path / vocab_file(config))
    rows, _ = encode_examples(examples, tokenizer, config.model, data)
    model, params = load_for_inference(folder, config, step, 1)
    logits = _logits(model, params, rows, config.train.batch_size)
    write_submission(task, output, [example.index for example in examples], predicted_labels(task, logits).tolist())


def _answer(
    folder: RunFolder,
    config: Config,
    data: SpanDataConfig,
    source: str,
    output: str,
    step: int | None,
    null_threshold: float,
    details: str | None,
) -> None:
    from mhsh.data.fine_tuning.spans import encode_questions
    from mhsh.data.fine_tuning.task import load_vocabulary
    from mhsh.evaluation.squad import find_answers
    from mhsh.training.checkpoints.restore import load_for_inference

    squad = read_squad(source)
    tokenizer = load_vocabulary(config.model, data, folder.path / vocab_file(config))
    rows, windows = encode_questions(squad.questions, tokenizer, config.model, data)
    model, params = load_for_inference(folder, config, step, 1)
    logits = _logits(model, params, rows, config.train.batch_size)
    answers = find_answers(squad.questions, windows, logits)
    threshold = null_threshold if squad.version == "2.0" else None
    ids = [question.id for question in squad.questions]
    _write_object(output, {name: each.text(threshold) for name, each in zip(ids, answers, strict=True)})
    if details is not None:
        _write_object(details, {name: _details(each) for name, each in zip(ids, answers, strict=True)})


def _details(answers: Any) -> dict[str, Any]:
    scores = np.array([candidate.score for candidate in answers.candidates])
    shares = np.exp(scores - scores.max()) if scores.size else scores
    return {
        "no_answer_difference": answers.null_difference if np.isfinite(answers.null_difference) else None,
        "best": [
            {"text": candidate.text, "score": candidate.score, "probability": float(share / shares.sum())}
            for candidate, share in zip(answers.candidates, shares, strict=True)
        ],
    }


def _logits(model: Any, params: Any, examples: Examples, batch_size: int) -> Float[np.ndarray, "examples ..."]:
    """The logits of every example, without dropout."""
    import jax
    import jax.numpy as jnp

    from mhsh.data.batches import prefetched
    from mhsh.data.fine_tuning.task import batches_in_order
    from mhsh.models.build import forward

    # A batch needs targets, but they are unknown here and the loss is not used.
    examples = examples | {"targets": np.zeros(len(examples["inputs"]), np.int32)}
    batches = batches_in_order(examples, batch_size)
    compute = jax.jit(lambda params, batch: forward(model, params, batch, None).logits)
    parts = [np.asarray(compute(params, jax.tree.map(jnp.asarray, batch))) for batch in prefetched(batches, 0, len(batches))]
    return np.concatenate(parts)[: len(examples["inputs"])]


def _write_object(path: str, content: dict[str, Any]) -> None:
    write_new(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")
