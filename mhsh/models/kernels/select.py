"""Where the kernels of this folder compute, and where XLA does: `model.kernels`."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import current_platform, tensor_is_sharded

_anywhere = contextvars.ContextVar("anywhere", default=False)


@contextlib.contextmanager
def anywhere() -> Iterator[None]:
    """What is traced within takes kernels without a GPU too. Pallas interprets them there, slowly:
    for tests.
    """
    token = _anywhere.set(True)
    try:
        yield
    finally:
        _anywhere.reset(token)


def takes_kernels(config: ModelConfig) -> bool:
    """Whether parts of a layer that have a kernel are computed by it, on the current mesh. `auto`
    leaves them to XLA: no GPU has timed them yet.
    """
    return config.kernels == "fused" and not obstacle()


def is_interpreted() -> bool:
    """Whether kernels are interpreted here, and not compiled."""
    return current_platform() != "gpu"


def obstacle() -> str:
    """Why no kernel can run on the current mesh; empty: they can."""
    if is_interpreted() and not _anywhere.get():
        return f"the device is a {current_platform().upper()} and no NVIDIA GPU"
    return "mesh.tensor cuts the parameters" if tensor_is_sharded() else ""
