"""mhsh train: trains a config into a run folder, or resumes the run that is there."""

from __future__ import annotations

import contextlib
import dataclasses
import shlex
import signal
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from cyclopts import Parameter

from mhsh.cli.early_stop import STOPPED, report_stop
from mhsh.cli.inspect import run_summary, source_lines
from mhsh.cli.parser import NO_CHANGES, ConfigOrChangesFlag, WorkdirFlag
from mhsh.config.entries import entry_flags, named_entries
from mhsh.config.resolve import from_dict
from mhsh.config.schema import TASKS, Config, to_dict
from mhsh.configs import CONFIG, LIST, override
from mhsh.errors import UserError
from mhsh.storage.questions import exists
from mhsh.storage.run_folder import CONFIG_FILE, RunFolder

PREDICT_INPUT = {  # flags of mhsh predict, by model.objective
    "clm": "--text=TEXT",
    "mlm": "--text='TEXT WITH [MASK]'",
    "translation": "--input=FILE",
    **dict.fromkeys(TASKS, "--input=FILE --output=FILE"),
}

EXAMPLES = (
    "mhsh train --config=bert:3l4h --workdir=runs/3l4h",
    "mhsh train --config=bert:12l1h --config.train.seed=1 --workdir=runs/12l1h",
)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True)
class Processes:
    """The flags of a command that several processes run together."""

    distributed: Annotated[bool, Parameter(help="join the processes that JAX finds (TPU VMs, GKE, Slurm); start it on each")] = (
        False
    )
    coordinator: Annotated[str | None, Parameter(help="HOST:PORT where process 0 listens; needs the next two")] = None
    num_processes: Annotated[int | None, Parameter(help="how many processes there are")] = None
    process_id: Annotated[int | None, Parameter(help="the number of this one, from 0")] = None

    def check(self) -> None:
        """Raises UserError where the last three are not given together, or do not fit together."""
        if self.coordinator is None and self.num_processes is None and self.process_id is None:
            return
        if self.coordinator is None or self.num_processes is None or self.process_id is None:
            raise UserError("give --coordinator=HOST:PORT, --num-processes=N and --process-id=I together, on each process")
        if not self.coordinator.rpartition(":")[2].isdecimal():
            raise UserError(f"--coordinator={self.coordinator} has no port; give HOST:PORT of process 0")
        if not 0 <= self.process_id < self.num_processes:
            raise UserError(f"--process-id={self.process_id} with --num-processes={self.num_processes}: ids go from 0 to N - 1")

    @contextlib.contextmanager
    def join(self) -> Iterator[None]:
        """Joins these processes, inside the `with`; this one stays alone where none are named."""
        if self == ALONE:
            yield
            return
        from mhsh.cluster.peers import join

        with join(coordinator=self.coordinator, num_processes=self.num_processes, process_id=self.process_id):
            yield


ALONE = Processes()


def run(
    *,
    given: ConfigOrChangesFlag = NO_CHANGES,
    workdir: WorkdirFlag,
    accept_gap: bool = False,
    fresh: bool = False,
    processes: Processes = ALONE,
) -> int:
    """Trains a config into a run folder, or resumes the run in it.

    After SIGTERM the exit status is 75, after Ctrl-C 130, and the state is saved: the same command
    resumes. A run folder with a config.json needs no --config; --config.SECTION.FIELD=VALUE then
    changes a field that does not affect the losses, such as train.accumulation_steps or
    data.source.

    Args:
      workdir: the run folder
      accept_gap: resume although rows of metrics.jsonl or newer checkpoints are lost; reports
        show it
      fresh: start a run again that has lost its checkpoints; its rows are moved aside
    """
    processes.check()
    config = given.config or _config_in(workdir, given.changes)
    folder = RunFolder(workdir)
    folder.check_takes(config)
    line = first_line(config, folder)
    if processes.process_id in (None, 0) and not processes.distributed:
        print(line, flush=True)
        for said in source_lines(config):
            print(said, flush=True)
    import jax

    from mhsh.training.loop import train

    with processes.join():
        is_first = jax.process_index() == 0  # of a run of several processes only the first one prints
        if is_first and processes.distributed:
            print(line, flush=True)
        stopped_by = train(config, workdir, accept_gap, fresh)
    if stopped_by is not None:
        return report_stop(stopped_by) if is_first else STOPPED[signal.Signals(stopped_by)]
    if is_first:
        named, files = shlex.quote(workdir), entry_flags(named_entries(config))
        print(f"next: mhsh compare {named} OTHER_RUN, or mhsh predict {named} {PREDICT_INPUT[config.model.objective]}{files}")
    return 0


def first_line(config: Config, folder: RunFolder) -> str:
    """The first line of a training, printed before jax is imported, which takes seconds."""
    step = folder.newest_checkpoint()
    begin = "training" if step is None else f"resuming after step {step:,} of"
    return f"{folder.name}: {begin} {run_summary(config)}"


def _config_in(workdir: str, changes: Sequence[tuple[str, Any]]) -> Config:
    folder = RunFolder(workdir)
    if not exists(folder.path / CONFIG_FILE):
        raise UserError(
            f"mhsh train needs --config={CONFIG}, such as --config=bert:3l4h, or a --workdir with a config.json; {LIST}"
        )
    return from_dict(override(to_dict(folder.read_config()), changes, "--config."))
