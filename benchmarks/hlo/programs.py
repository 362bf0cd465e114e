"""The program of a training step, compiled without its device, for the instruments beside this."""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from mhsh.config.schema import Config
from mhsh.configs import take_config
from mhsh.planning.compiled import Topology, measure, parse_topology
from mhsh.planning.hlo import Module, parse_module


def read_arguments(description: str | None) -> tuple[Config, Topology]:
    """The step that the command line names: `--config`, its fields and `--topology`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", required=True)
    parser.add_argument("--topology", required=True)
    options, rest = parser.parse_known_args()
    config, unknown = take_config("config", options.config, rest)
    if config is None or unknown:
        parser.error(f"unknown arguments: {unknown}")
    return config, parse_topology(options.topology)


def compile_step(config: Config, topology: Topology, runs: int = 1) -> tuple[dict[str, Any], Module]:
    """The report of `mhsh plan` on the compiled step of so many runs together, and its program."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.hlo"
        report = measure(config, topology, hlo_path=path, runs=runs)
        return report, parse_module(path.read_text(encoding="utf-8"))
