"""mhsh quickstart: the small comparison of configs/quickstart.py, from nothing to its report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from mhsh.cli import compare, train
from mhsh.config.schema import Config


def run(configs: Mapping[str, Config], workdir: str) -> int:
    """Trains each config in a folder of its name (a finished one is kept), then writes report.html
    beside them.
    """
    folders = []
    for number, (name, config) in enumerate(configs.items(), 1):
        print(f"[{number}/{len(configs)}] {name}", flush=True)
        folder = Path(workdir) / name
        status = train.run(config, str(folder))
        if status:
            return status
        folders.append(str(folder))
    return compare.run(folders, str(Path(workdir) / "report.html"))
