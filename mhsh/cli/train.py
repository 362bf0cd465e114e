"""mhsh train: a config into a run folder, or on with the run that is there."""

from __future__ import annotations

import os
import signal

import jax

from mhsh.config.schema import Config
from mhsh.errors import UserError
from mhsh.run_folder import RunFolder
from mhsh.training.cluster import join
from mhsh.training.loop import train


def run(
    config: Config | None,
    workdir: str,
    distributed: bool = False,
    coordinator: str | None = None,
    num_processes: int | None = None,
    process_id: int | None = None,
) -> int:
    """Trains and says where the results lie. After SIGTERM with the state saved 75 (EX_TEMPFAIL):
    requeue the same command; after Ctrl-C 130.

    Args:
      config: None takes the one that the run folder holds.

    Raises:
      UserError: there is no config, or whatever is wrong with it, its data or the folder.
    """
    if config is None:
        config = _config_in(workdir)
    if distributed or coordinator is not None:
        join(coordinator=coordinator, num_processes=num_processes, process_id=process_id)
    # One process makes the folder; the others find it made when the processes have agreed on the
    # config.
    folder = RunFolder.open_for_training(workdir, config) if jax.process_index() == 0 else RunFolder(workdir)
    stopped_by = train(config, folder)
    if stopped_by is not None:
        print(f"stopped by signal {stopped_by}, state saved; the same command goes on from here")
        return os.EX_TEMPFAIL if stopped_by == signal.SIGTERM else 128 + stopped_by
    print(f"done: {workdir} (mhsh compare {workdir} ... puts it beside others)")
    return 0


def _config_in(workdir: str) -> Config:
    folder = RunFolder(workdir)
    if not (folder.path / "config.json").exists():
        raise UserError(
            "mhsh train needs --config=FILE.py:VARIANT, such as --config=configs/bert.py:2l8h, or a --workdir with a config.json"
        )
    return folder.read_config()
