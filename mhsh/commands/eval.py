"""mhsh eval: a checkpoint's figures on the run's validation rows."""

from __future__ import annotations

import functools
import json

import jax

from mhsh.config import rows_in_batch
from mhsh.data.load import load_corpus
from mhsh.data.pipeline import prefetched
from mhsh.data.translation import TranslationCorpus
from mhsh.errors import UserError
from mhsh.evaluation.translation_figures import translation_figures
from mhsh.evaluation.validation import evaluate
from mhsh.models.model import build_model
from mhsh.models.seq2seq import Seq2Seq
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import make_mesh, process_rows, put_batch
from mhsh.training.state import abstract_state
from mhsh.training.step import CompiledByLength, compile_eval_step

# The decoding of the authors' recipe for translation (see configs/translation.py).
NUM_HYPOTHESES = 4
LENGTH_PENALTY = 0.6


def run(folder: str, step: int | None) -> int:
    """Prints one JSON object: step, rows, and each figure over all validation rows."""
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    checkpoints = Checkpoints(run_folder.checkpoints_path, keep=config.train.keep_checkpoints, keep_every=config.train.keep_every)
    step = checkpoints.existing_step(step)
    mesh = make_mesh(config)
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    params = checkpoints.restore_params(step, abstract_state(config, model, optimizer, mesh).params)

    corpus = load_corpus(config, run_folder.path)
    recorded = run_folder.read_run()["data"]["fingerprint"]
    if corpus.fingerprint != recorded:
        raise UserError(f"{folder} was trained on other data (fingerprint {recorded[:12]}, here {corpus.fingerprint[:12]})")
    corpus.check_batch(config.train.batch_size)
    batches = corpus.validation_batches(config.train.batch_size, functools.partial(process_rows, mesh))
    score = CompiledByLength(lambda length: compile_eval_step(config, model, mesh, params, length))
    placed = (
        put_batch(each, mesh, rows_in_batch(config, each["inputs"].shape[1])) for each in prefetched(batches, 0, len(batches))
    )
    values = evaluate(score, params, placed)
    if isinstance(corpus, TranslationCorpus) and isinstance(model, Seq2Seq):
        pairs = corpus.validation_pairs(None)
        values |= translation_figures(
            model, params, corpus.tokenizer, pairs, num_hypotheses=NUM_HYPOTHESES, length_penalty=LENGTH_PENALTY
        )
    if jax.process_index() == 0:
        figures = {name.removeprefix("token_"): value for name, value in values.items()}
        print(json.dumps({"step": step, "batches": len(batches), **figures}))
    return 0
