"""What is said when a training ends, read from its folder."""

from __future__ import annotations

from mhsh.config.schema import Config
from mhsh.storage.outcome import ON_PLATEAU, outcome_words, plateau_due, what_to_try
from mhsh.storage.run_folder import RunFolder
from mhsh.text import duration, format_loss


def ending(folder: RunFolder, config: Config) -> list[str]:
    """The last lines of a run that is finished or was stopped: how long it took in all its
    processes, its losses, whether it trained, and its newest checkpoint.
    """
    record, step, steps = folder.read_run("wall_seconds", "data"), folder.newest_checkpoint(), config.train.num_steps
    what = f"finished {steps} steps" if step == steps else f"stopped after step {step} of {steps}"
    lines = [f"{what}, in {duration(sum(record['wall_seconds'].values()))}"]
    at, losses = (column.tolist() for column in folder.read_metrics().series("validation", "step", "loss"))
    if losses:
        lowest = min(range(len(losses)), key=losses.__getitem__)
        other = f" (lowest: {format_loss(losses[lowest])} at step {at[lowest]:.0f})" if losses[lowest] < losses[-1] else ""
        lines.append(f"validation loss {format_loss(losses[-1])} at step {at[-1]:.0f}{other}")
    entropy, outcome = record["data"].get("unigram_entropy"), record.get("outcome")
    is_due = step == steps or (step or 0) >= plateau_due(config)  # before that the outcome says nothing yet
    if is_due and outcome is not None and entropy is not None:
        lines.append(outcome_words(outcome, config, entropy))
        if outcome == ON_PLATEAU and losses:
            lines.append(f"to try in another --workdir: {what_to_try(config, losses[-1], entropy)}")
    return [*lines, f"checkpoint {folder.checkpoints_path / str(step)}"]
