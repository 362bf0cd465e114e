"""The choice between the kernels of this folder and XLA: `model.kernels`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import current_platform, tensor_is_sharded

_interpreter_allowed = contextvars.ContextVar("allow_interpreter", default=False)


@contextlib.contextmanager
def allow_interpreter() -> Iterator[None]:
    """Inside the `with`, programs take kernels without a GPU too, where Pallas interprets them,
    slowly: for tests. It counts while they are traced.
    """
    token = _interpreter_allowed.set(True)
    try:
        yield
    finally:
        _interpreter_allowed.reset(token)


def takes_kernels(config: ModelConfig) -> bool:
    """Whether parts of a layer that have a kernel are computed by it, on the current mesh. `auto`
    leaves them to XLA: no GPU has timed them yet.
    """
    return asks_for_kernels(config) and not mesh_obstacle()


def asks_for_kernels(config: ModelConfig) -> bool:
    """Whether `model.kernels` asks for kernels of our own."""
    return config.kernels in ("fused", "mosaic")


def is_interpreted() -> bool:
    """Whether kernels are interpreted here, and not compiled."""
    return current_platform() != "gpu"


def mesh_obstacle() -> str:
    """The reason why no kernel can run on the current mesh; empty: they can."""
    if is_interpreted() and not _interpreter_allowed.get():
        return f"the device is a {current_platform().upper()} and no NVIDIA GPU"
    return "mesh.tensor cuts the parameters" if tensor_is_sharded() else ""
