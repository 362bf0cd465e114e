"""mhsh quickstart: the small comparison of the config quickstart, from nothing to its report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from mhsh.cli import compare
from mhsh.cli.early_stop import report_stop
from mhsh.cli.parser import ComposedFlag, WorkdirFlag, make_configs
from mhsh.cli.train import first_line
from mhsh.config.schema import Config
from mhsh.configs import Changes
from mhsh.configs.quickstart import VARIANTS
from mhsh.storage.files import check_writable
from mhsh.storage.run_folder import RunFolder


def _make(flag: str, _: None, changes: Changes) -> dict[str, Config]:
    """The configs by variant; overrides go to all of them."""
    configs = make_configs(flag, [f"quickstart:{variant}" for variant in VARIANTS], changes)
    return {name.removeprefix("quickstart:"): config for name, config in configs}


EXAMPLES = ("mhsh quickstart", "mhsh quickstart --workdir=runs/short --config.train.num_steps=100")


def run(
    *,
    configs: Annotated[dict[str, Config], Parameter(parse=False), ComposedFlag("config", _make)],
    workdir: WorkdirFlag = "runs/quickstart",
) -> int:
    """Trains a small comparison, writes report.html beside the runs, and prints a sample of each.

    --config.SECTION.FIELD=VALUE changes a field of all of them. A finished run is kept.

    Args:
      workdir: where the runs and the report go, on a disk
    """
    check_writable("--workdir", workdir)  # here the report is written, too
    folders = []
    for number, (name, config) in enumerate(configs.items(), 1):
        folder = Path(workdir) / name
        print(f"[{number}/{len(configs)}] {first_line(config, RunFolder(folder))}", flush=True)
        from mhsh.training.loop import train

        stopped_by = train(config, folder)
        if stopped_by is not None:
            return report_stop(stopped_by)
        folders.append(str(folder))
    status = compare.run(*folders, out=str(Path(workdir) / "report.html"))
    from mhsh.inference import load

    print("\nWhat each writes, from the same seed:")
    for name, folder in zip(configs, folders, strict=True):
        text = load(folder).generate("The function ", max_tokens=70)
        print(f"  {name:<14} {json.dumps(text, ensure_ascii=False)}")  # one line
    return status
