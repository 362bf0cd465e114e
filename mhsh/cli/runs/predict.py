"""mhsh predict: a fine-tuned model's answers to examples of its task, in the task's own form."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from mhsh.cli.flags import add_step
from mhsh.cli.parser import examples
from mhsh.config.schema import ClassificationDataConfig, Config, SpanDataConfig
from mhsh.data.fine_tuning.glue import find_task, read_glue, write_submission
from mhsh.data.fine_tuning.squad import read_squad
from mhsh.data.tables import Examples
from mhsh.errors import UserError
from mhsh.evaluation.glue import predicted_labels
from mhsh.files import write_new
from mhsh.run_folder import RunFolder, vocab_file


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples(
        "mhsh predict runs/cola/seed-0 --input=test.tsv --output=CoLA.tsv",
        "mhsh predict runs/v2/seed-0 --input=dev-v2.0.json --output=answers.json",
    )
    parser.add_argument("folder", metavar="RUN")
    parser.add_argument("--input", dest="source", required=True, metavar="FILE", help="GLUE's TSV or SQuAD's JSON, plain or .gz")
    parser.add_argument("--output", required=True, metavar="FILE", help="a new file: GLUE's TSV, or JSON of answers by id")
    add_step(parser)
    parser.add_argument(
        "--null-threshold", type=float, default=0.0, metavar="X", help="SQuAD 2.0: how much better no answer must be (default: 0)"
    )
    parser.add_argument("--details", metavar="FILE", help="SQuAD: a new file for the n-best answers and what X is compared with")


def run(folder: str, source: str, output: str, step: int | None, null_threshold: float, details: str | None) -> int:
    """Writes one answer to each example of `source` into `output`, in their order.

    A GLUE task reads its original TSV and writes `index<TAB>prediction`; SQuAD reads its JSON and
    writes one object, the answer by question id, "" for none.

    Args:
      step: the checkpoint (None: the newest).
      null_threshold: of SQuAD 2.0: no answer is given where it scores higher than the best one by
        more than this.
      details: of SQuAD: a file for the n-best answers and the differences that null_threshold is
        compared with (None: not written).

    Raises:
      UserError: the run is of another kind, the file is not the task's, or `output` or `details`
        exists.
    """
    for path in (output, details):
        if path is not None and Path(path).exists():
            raise UserError(f"{path} exists; choose another name, or remove it first")
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    match config.data:
        case ClassificationDataConfig():
            if details is not None:
                raise UserError(f"--details is for runs of model.objective = 'span'; {folder} is one of {config.model.objective!r}")
            _classify(run_folder, config, config.data, source, output, step)
        case SpanDataConfig():
            _answer(run_folder, config, config.data, source, output, step, null_threshold, details)
        case _:
            raise UserError(
                f"{folder} is a run of model.objective = {config.model.objective!r}; mhsh predict needs 'classification' or "
                "'span': fine-tune it first (mhsh finetune)"
            )
    return 0


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
    from mhsh.evaluation.answers import find_answers
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
