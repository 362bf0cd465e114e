"""mhsh configs: the config files with their variants, the sources of text, every field, or
one config in full.
"""

from __future__ import annotations

import json
import textwrap
from typing import Annotated, Any

from cyclopts import Parameter

from mhsh import configs
from mhsh.config.entries import SOURCES
from mhsh.config.fields import sections
from mhsh.config.resolve import from_dict
from mhsh.config.schema import ROLES, TASKS, ModelConfig, to_dict

EXAMPLES = ("mhsh configs", "mhsh configs bert:384l1h")


def run(config: Annotated[str | None, Parameter(name="NAME:VARIANT")] = None, /) -> int:
    """Lists config files with variants, sources and fields; or prints one config in full.

    Args:
      config: print this config as JSON
    """
    if config is not None:
        fields = configs.load_fields(config)
        model = fields.get("model")
        # One for fine-tuning lacks what `mhsh finetune` takes from the pre-trained run.
        is_open = model is not None and model.get("objective") in TASKS and not set(ModelConfig.__struct_fields__) <= set(model)
        print(json.dumps(fields if is_open else to_dict(from_dict(fields)), indent=2, default=_plain))
        return 0
    print(f"Configs, as --config takes them besides FILE.py:VARIANT (the files are in {configs.SHIPPED}):\n")
    print(*map(_file, configs.shipped_names()), sep="\n\n")
    print("\nSources of documents, as --config.data.source takes them; gs:// too:\n")
    for source in SOURCES.entries():
        print(f"  {source.form}\n      {source.reads}; a document is {source.document}")
    print("\nFields, and what a difference in them does to a comparison:\n")
    for role, meaning in ROLES.items():
        print(f"{role}: {meaning}")
    for heading, doc, fields in sections():
        print(f"\n{heading}: {doc}")
        for field in fields:
            print(f"  {field.path} ({field.values}; {field.role})\n      {field.doc}")
    return 0


def _plain(value: Any) -> Any:
    """A number of numpy or jax as Python's own; of all else what Python calls it."""
    return value.item() if getattr(value, "shape", None) == () else repr(value)


def _file(name: str) -> str:
    """A paragraph on a config file: what it is for, and its variants as `--config` takes them."""
    module = configs.load(name)
    subject = (module.__doc__ or "").split("\n")[0]
    variants = ", ".join(f"{name}:{variant}" for variant in module.VARIANTS)
    recipes = getattr(module, "RECIPES", {})
    more = [f"each also with {', '.join(f'-{recipe}' for recipe in recipes)}"] if recipes else []
    lines = [line for part in (variants, *more) for line in textwrap.wrap(part, 78, break_on_hyphens=False)]
    return "\n  ".join([f"{name}: {subject}", *lines])
