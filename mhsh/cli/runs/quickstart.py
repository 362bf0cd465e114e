"""mhsh quickstart: the small comparison of the config quickstart, from nothing to its report."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path

from mhsh.cli.flags import take_config
from mhsh.cli.parser import examples
from mhsh.cli.reports import compare
from mhsh.cli.runs import train
from mhsh.config.schema import Config

PROMPT, SAMPLE_TOKENS = "The function ", 70
VARIANTS = ("6l4h_post_ln", "24l1h_post_ln", "24l1h_admin", "24l1h_pre_ln")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.epilog = examples("mhsh quickstart", "mhsh quickstart --workdir=runs/short --config.train.num_steps=100")
    parser.set_defaults(configs=None, takers={"configs": (_take_configs, "config")})
    parser.add_argument("--workdir", default="runs/quickstart", metavar="DIR", help="where the runs go")


def run(configs: Mapping[str, Config], workdir: str) -> int:
    """Trains each config in a folder of its name (a finished one is kept), then writes report.html
    beside them, and prints a sample of each.
    """
    folders = []
    for number, (name, config) in enumerate(configs.items(), 1):
        print(f"[{number}/{len(configs)}] {name}", flush=True)
        folder = Path(workdir) / name
        status = train.run(config, str(folder))
        if status:
            return status
        folders.append(str(folder))
    status = compare.run(folders, out=str(Path(workdir) / "report.html"))
    from mhsh.inference import load

    print("\nWhat each writes, from the same seed:")
    for name, folder in zip(configs, folders, strict=True):
        text = load(folder).generate(PROMPT, max_tokens=SAMPLE_TOKENS)
        print(f"  {name:<14} {json.dumps(text, ensure_ascii=False)}")  # one line
    return status


def _take_configs(flag: str, _: None, arguments: list[str]) -> tuple[dict[str, Config], list[str]]:
    """The configs by variant and the arguments left; overrides go to all of them."""
    configs: dict[str, Config] = {}
    rest = arguments
    for variant in VARIANTS:
        config, rest = take_config(flag, f"quickstart:{variant}", arguments)
        assert config is not None
        configs[variant] = config
    return configs, rest
