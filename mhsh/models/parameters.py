"""The parameters of a model: their logical axes, the axes that a kernel contracts, and weight
decay. Modules, packing, sharding, the optimizers and the exchange of checkpoints read it here.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from mhsh.config.schema import ModelConfig

# Parameters below this name are stacked over the layers on axis 0.
STACKED = "layers"


class LogicalAxis(NamedTuple):
    """A logical axis of parameters."""

    field: str = ""  # of the model's config, that has its length
    tensor: bool = False  # sharded over the mesh axis `tensor`, where it is longer than 1
    wide: bool = False  # makes a matrix of what also has the axis `embed`
    regrouped: bool = False  # regrouping shortens it


AXES: Mapping[str, LogicalAxis] = {
    "embed": LogicalAxis("embed_dim"),
    "embed_out": LogicalAxis("embed_dim", wide=True),
    "heads": LogicalAxis("num_heads", tensor=True, wide=True, regrouped=True),
    "kv_heads": LogicalAxis("num_kv_heads", tensor=True, wide=True, regrouped=True),
    "head_dim": LogicalAxis("head_dim"),
    "mlp": LogicalAxis("mlp_dim", tensor=True, wide=True, regrouped=True),
    "vocab": LogicalAxis("vocab_size", tensor=True, wide=True),
    "positions": LogicalAxis(),  # every device reads all of them
    "classes": LogicalAxis(),
    "streams": LogicalAxis(),  # of mhc_lite, and the weights that mix them
    "mixing": LogicalAxis(),
    STACKED: LogicalAxis(),
}


def axis_length(config: ModelConfig, axis: str) -> int:
    """The length of an axis that a field has."""
    return config.kv_heads if axis == "kv_heads" else getattr(config, AXES[axis].field)


class Kernel(NamedTuple):
    """A linear map from its first axes to the others. Its bias has the others."""

    axes: tuple[str, ...]
    num_inputs: int = 1
    num_joint: int = 1  # kernels, this one among them, that are one matrix in fairseq

    def sides(self, config: ModelConfig) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The lengths of the axes that are contracted, and of the others."""
        shape = tuple(axis_length(config, axis) for axis in self.axes)
        return shape[: self.num_inputs], shape[self.num_inputs :]


# The kernels of a layer, by the last part of a parameter's path.
PROJECTIONS: Mapping[str, Kernel] = {
    "query_kernel": Kernel(("embed", "heads", "head_dim"), num_joint=3),
    "key_kernel": Kernel(("embed", "kv_heads", "head_dim"), num_joint=3),
    "value_kernel": Kernel(("embed", "kv_heads", "head_dim"), num_joint=3),
}
KERNELS: Mapping[str, Kernel] = {
    **PROJECTIONS,
    "out_kernel": Kernel(("heads", "head_dim", "embed"), num_inputs=2),
    "up_kernel": Kernel(("embed", "mlp")),
    "gate_kernel": Kernel(("embed", "mlp")),
    "down_kernel": Kernel(("mlp", "embed")),
}

# Whether a parameter has weight decay, by its path; see also `decayed` of a residual scheme.
DECAYED_PARAMETERS: Mapping[str, bool] = {
    r"(norm/scale|bias)$": False,
    r"kernel$": True,
    r"^embeddings/(token|position|token_type|source_position|target_position)$": True,
}
# Parameters that a residual scheme decides about: its own, but for those of its LayerNorms.
_SCHEME_PARAMETERS = re.compile(r"(_residual/|^(encoder|decoder)/(?!layers/))(?!.*norm/(scale|bias)$)")


def is_kernel(path: str) -> bool:
    """Whether a parameter is used in the compute dtype alone. Tables and vectors are not, nor are a
    residual scheme's own, which may have any name.
    """
    return path.endswith("kernel") and not _SCHEME_PARAMETERS.search(path)


def has_decay(path: str, scheme_decay: Mapping[str, bool]) -> bool | None:
    """Whether a parameter has weight decay, where the residual scheme decides about names of its
    own; None where nothing says so.
    """
    if (name := path.rpartition("/")[2]) in scheme_decay and _SCHEME_PARAMETERS.search(path):
        return scheme_decay[name]
    return next((decays for pattern, decays in DECAYED_PARAMETERS.items() if re.search(pattern, path)), None)


def parameter_path(path: tuple[Any, ...]) -> str:
    """encoder/layers/... for a key path of jax.tree_util, without the boxes around parameters."""
    names = (getattr(key, "key", None) for key in path)
    return "/".join(name for name in names if isinstance(name, str))
