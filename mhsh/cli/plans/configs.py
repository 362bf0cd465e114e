"""mhsh configs: the config files with their variants, every field, or one config in full."""

from __future__ import annotations

import argparse
import json
import textwrap
from typing import Any

from mhsh import configs
from mhsh.cli.parser import examples
from mhsh.configs import shipped_names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.epilog = examples("mhsh configs", "mhsh configs bert:384l1h")
    parser.add_argument(
        "config", nargs="?", metavar="NAME:VARIANT", help="print this config as JSON (default: list all configs and fields)"
    )
    parser.add_argument("--markdown", action="store_true", help="print docs/config.md, the reference of all fields")


def run(config: str | None, markdown: bool) -> int:
    """Prints what was asked for.

    Raises:
      UserError: there is no such file or variant, or the config is not valid.
    """
    from mhsh.config import reference

    if markdown:
        print(reference.markdown(), end="")
    elif config is not None:
        print(json.dumps(_resolved(config), indent=2))
    else:
        print(f"Configs, as --config takes them besides FILE.py:VARIANT:\n\n{_files()}\n")
        print(f"Fields, and what a difference in them does to a comparison:\n\n{reference.text()}")
    return 0


def _resolved(name: str) -> dict[str, Any]:
    """The fields of a config. One for fine-tuning lacks what `mhsh finetune` takes from the
    pre-trained run.
    """
    from mhsh.config.resolve import from_dict
    from mhsh.config.schema import ModelConfig, to_dict
    from mhsh.configs import load_fields

    fields = load_fields(name)
    return to_dict(from_dict(fields)) if set(ModelConfig.__struct_fields__) <= set(fields["model"]) else fields


def _files() -> str:
    """A paragraph a config file: what it is for, and its variants as `--config` takes them."""
    return "\n\n".join(map(_file, shipped_names()))


def _file(name: str) -> str:
    module = configs.load(name)
    subject = (module.__doc__ or "").split("\n")[0]
    variants = ", ".join(f"{name}:{variant}" for variant in module.VARIANTS)
    recipes = getattr(module, "RECIPES", {})
    more = [f"each also with {', '.join(f'-{recipe}' for recipe in recipes)}"] if recipes else []
    lines = [line for part in (variants, *more) for line in textwrap.wrap(part, 78, break_on_hyphens=False)]
    return "\n  ".join([f"{name}: {subject}", *lines])
