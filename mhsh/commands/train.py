"""mhsh train: a config into a run folder, or on with the run that is there."""

from __future__ import annotations

from mhsh.config import Config
from mhsh.run_folder import RunFolder
from mhsh.training.loop import train


def run(config: Config, workdir: str) -> int:
    """Trains and says where the results lie; 128 + n after signal n, with the state saved."""
    folder = RunFolder.open_for_training(workdir, config)
    stopped_by = train(config, folder)
    if stopped_by is not None:
        print(f"stopped by signal {stopped_by}, state saved; the same command goes on from here")
        return 128 + stopped_by
    print(f"done: {workdir} (mhsh compare {workdir} ... puts it beside others)")
    return 0
