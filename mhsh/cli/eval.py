"""mhsh eval: a checkpoint's figures on the run's validation rows."""

from __future__ import annotations

import functools
import json

from msgspec.structs import replace

from mhsh.cli.parser import RunFolderArgument, StepFlag
from mhsh.run_folder import RunFolder

EXAMPLES = ("mhsh eval runs/2l8h", "mhsh eval runs/2l8h --step=40")


def run(folder: RunFolderArgument, /, *, step: StepFlag = None) -> int:
    """Prints a checkpoint's metrics on all validation rows of its run, as one JSON object."""
    import jax
    import optax

    from mhsh.models.build import build_model
    from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
    from mhsh.training.checkpoints.restore import load_recorded_corpus
    from mhsh.training.sharding import make_mesh, process_rows
    from mhsh.training.state import abstract_state
    from mhsh.training.validation import Decoding, Validator

    run_folder = RunFolder(folder)
    config = run_folder.read_config()
    checkpoints = StoredCheckpoints(run_folder.checkpoints_path)
    step = checkpoints.existing_step(step)
    mesh = make_mesh(config)
    # Only training uses cuDNN.
    model = build_model(replace(config.model, attention_implementation="xla"))
    # The parameters do not depend on the optimiser.
    params = checkpoints.restore_params(step, abstract_state(config, optax.identity(), mesh).params)

    corpus = load_recorded_corpus(run_folder, config)
    corpus.check_batch(config.train.batch_size)
    # The decoding of the authors' recipe for translation (see mhsh/configs/translation.py).
    decoding = Decoding(num_sentences=None, num_hypotheses=4, length_penalty=0.6)
    validator = Validator(config, model, mesh, corpus, functools.partial(process_rows, mesh), params, decoding)
    values = validator(params).values
    if jax.process_index() == 0:
        figures = {name.removeprefix("target_"): value for name, value in values.items()}
        print(json.dumps({"step": step, "batches": validator.num_batches, **figures}))
    return 0
