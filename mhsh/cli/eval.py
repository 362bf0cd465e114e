"""mhsh eval: a checkpoint's figures on the run's validation rows."""

from __future__ import annotations

from mhsh.cli.parser import NO_CHANGES, RunChangesFlag, RunFolderArgument, StepFlag
from mhsh.config.entries import UPDATE_RULES
from mhsh.storage.run_folder import RunFolder
from mhsh.text import to_json

EXAMPLES = ("mhsh eval runs/3l4h", "mhsh eval runs/3l4h --step=500", "mhsh eval runs/3l4h --config.data.source='text:moved/*.txt'")


def run(folder: RunFolderArgument, /, *, step: StepFlag = None, given: RunChangesFlag = NO_CHANGES) -> int:
    """Prints a checkpoint's metrics on all validation rows of its run, as one JSON object.

    --config.data.source=PLACE says where the run's data is now, which must be the same. Other
    fields that do not affect the losses, such as mesh.fsdp, can be changed in the same way.
    """
    import jax
    from msgspec.structs import replace

    from mhsh.training.checkpoints.checkpoint import StoredCheckpoints
    from mhsh.training.checkpoints.restore import load_for_inference, load_recorded_corpus, note_other_file
    from mhsh.training.memory import replace_policy
    from mhsh.training.mesh import make_mesh
    from mhsh.training.plan import plan_run
    from mhsh.training.sharding import FSDP_AXIS
    from mhsh.training.validation import Validator

    run_folder = RunFolder(folder)
    config = run_folder.read_config(given.changes)
    note_other_file(run_folder, config, UPDATE_RULES)  # which may decide about the mesh
    step = StoredCheckpoints(run_folder.checkpoints_path).existing_step(step)
    # Nothing trains: a batch may have more rows, of padding, so that any devices divide it.
    shards = config.train.accumulation_steps * len(jax.devices())
    config = replace(config, train=replace(config.train, batch_size=-(-config.train.batch_size // shards) * shards))
    plan = plan_run(replace_policy(config, "none"))  # nothing is saved for a backward pass
    if plan.mesh_shape[FSDP_AXIS] > 1:  # `auto` may have to gather the weights group by group
        plan = plan_run(config)
    config, mesh = plan.config, make_mesh(plan.mesh_shape)
    model, params = load_for_inference(run_folder, config, step, 1, mesh)
    corpus = load_recorded_corpus(run_folder, config)
    # The decoding of the authors' recipe for translation (see configs/translation.py).
    validator = Validator(config, model, mesh, corpus, params, num_sentences=None, num_hypotheses=4, length_penalty=0.6)
    values = validator(params).values
    if jax.process_index() == 0:
        figures = {name.removeprefix("target_"): value for name, value in values.items()}
        print(to_json({"step": step, "batches": validator.num_batches, **figures}))
    return 0
