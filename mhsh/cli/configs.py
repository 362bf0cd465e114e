"""mhsh configs: the config files with their variants, every field, or one config in full."""

from __future__ import annotations

import argparse
import importlib.util
import json
from pathlib import Path
from typing import Any

from mhsh.errors import UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The flags of the command."""
    parser.add_argument(
        "config", nargs="?", metavar="FILE.py:VARIANT", help="print this config as JSON (default: list files, variants and fields)"
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
        print(f"Config files:\n\n{_files()}\n\nFields, and what a difference in them does to a comparison:\n\n{reference.text()}")
    return 0


def _resolved(name: str) -> dict[str, Any]:
    """The fields of a config. One for fine-tuning lacks what `mhsh finetune` takes from the
    pre-trained run.
    """
    from mhsh.cli.flags import take_fields
    from mhsh.config.resolve import from_dict
    from mhsh.config.schema import ModelConfig, to_dict

    fields, _ = take_fields("config", [f"--config={name}"])
    assert fields is not None
    return to_dict(from_dict(fields)) if set(ModelConfig.__struct_fields__) <= set(fields["model"]) else fields


def _files() -> str:
    """A paragraph a config file: what it is for, and its variants."""
    folder = Path(__file__).resolve().parents[2] / "configs"
    paths = sorted(path for path in folder.glob("*.py") if path.name != "base.py")
    if not paths:
        raise UserError(f"there are no config files in {folder}; run mhsh from a checkout")
    return "\n\n".join(map(_file, paths))


def _file(path: Path) -> str:
    spec = importlib.util.spec_from_file_location(f"configs.{path.stem}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    subject = (module.__doc__ or "").split("\n")[0]
    recipes = getattr(module, "RECIPES", {})
    more = f"\n  each also with {', '.join(f'-{recipe}' for recipe in recipes)}" if recipes else ""
    return f"{path.parent.name}/{path.name}: {subject}\n  {', '.join(module.VARIANTS)}{more}"
