"""mhsh: shallow multi-head Transformers against their deep single-head twins.

The public names are loaded when they are first used: `import mhsh` alone loads no jax.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mhsh import configs as configs
    from mhsh.config.entries import add_optimizer as add_optimizer
    from mhsh.config.entries import add_residual as add_residual
    from mhsh.config.schema import Config as Config
    from mhsh.data.documents import add_source as add_source
    from mhsh.errors import UserError as UserError
    from mhsh.inference import LoadedModel as LoadedModel
    from mhsh.inference import load as load
    from mhsh.training.loop import train as train

__version__ = "0.1.0"

_HOMES = {
    "Config": "mhsh.config.schema",
    "LoadedModel": "mhsh.inference",
    "UserError": "mhsh.errors",
    "add_optimizer": "mhsh.config.entries",
    "add_residual": "mhsh.config.entries",
    "add_source": "mhsh.data.documents",
    "load": "mhsh.inference",
    "train": "mhsh.training.loop",
}
__all__ = ["__version__", "configs", *_HOMES]  # noqa: PLE0604 (its keys are strings)


def __getattr__(name: str) -> Any:
    if name == "configs":
        return importlib.import_module("mhsh.configs")
    if name not in _HOMES:
        raise AttributeError(f"module 'mhsh' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
