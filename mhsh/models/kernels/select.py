"""Where the kernels of this folder compute, and where XLA does: `model.kernels`."""

from __future__ import annotations

from mhsh.config.schema import ModelConfig
from mhsh.models.devices import current_platform, tensor_is_sharded

# Whether kernels also run where there is no GPU, in Pallas's interpreter. It takes minutes for what
# XLA does in a second, so only tests set it.
interpreted = False


def takes_kernels(config: ModelConfig) -> bool:
    """Whether parts of a layer that have a kernel are computed by it, on the current mesh. `auto`
    leaves them to XLA: no GPU has timed them yet.
    """
    return config.kernels == "fused" and not obstacle()


def obstacle() -> str:
    """Why no kernel can run on the current mesh; empty: they can."""
    platform = current_platform()
    if platform != "gpu" and not interpreted:
        return f"the device is a {platform.upper()} and no NVIDIA GPU"
    return "mesh.tensor cuts the parameters" if tensor_is_sharded() else ""
