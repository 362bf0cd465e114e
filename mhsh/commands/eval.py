"""mhsh eval: a checkpoint's figures on the run's validation rows."""

from __future__ import annotations

import json

import jax

from mhsh.data.corpus import check_batch, load_corpus
from mhsh.data.pipeline import prefetched, validation_batches
from mhsh.errors import UserError
from mhsh.evaluation.validation import evaluate
from mhsh.models.bert import build_model
from mhsh.run_folder import RunFolder
from mhsh.training.checkpoint import Checkpoints
from mhsh.training.optimizer import build_optimizer
from mhsh.training.sharding import make_mesh, process_rows, put_batch
from mhsh.training.state import abstract_state
from mhsh.training.step import compile_eval_step


def run(folder: str, step: int | None) -> int:
    """Prints one JSON object: step, rows, and each figure over all validation rows."""
    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    checkpoints = Checkpoints(run_folder.checkpoints_path, keep=config.train.keep_checkpoints, keep_every=config.train.keep_every)
    step = checkpoints.existing_step(step)
    mesh = make_mesh(config)
    model, optimizer = build_model(config.model), build_optimizer(config.optimizer, config.train)
    params = checkpoints.restore_params(step, abstract_state(config, model, optimizer, mesh).params)

    corpus = load_corpus(config.model, config.data, run_folder.vocab_path)
    recorded = run_folder.read_run()["data"]["fingerprint"]
    if corpus.fingerprint != recorded:
        raise UserError(f"{folder} was trained on other data (fingerprint {recorded[:12]}, here {corpus.fingerprint[:12]})")
    batch_size = config.train.batch_size
    check_batch(corpus, batch_size)
    batches = validation_batches(corpus, config.model, config.data, batch_size, process_rows(mesh, batch_size))
    score = compile_eval_step(config, model, mesh, params)
    values = evaluate(score, params, (put_batch(batch, mesh, batch_size) for batch in prefetched(batches, 0, len(batches))))
    if jax.process_index() == 0:
        figures = {name.removeprefix("token_"): value for name, value in values.items()}
        print(json.dumps({"step": step, "batches": len(batches), **figures}))
    return 0
