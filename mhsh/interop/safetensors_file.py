"""One safetensors file. The library checks its header when it is opened; its tensors are read one
at a time.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float32
from safetensors import SafetensorError, safe_open

from mhsh.errors import UserError

LENGTH_BYTES = 8  # of the header's length, with which a file begins
READABLE = ("F32", "F16", "BF16")  # the types that fp32 holds without loss


class TensorInfo(NamedTuple):
    """What the header says about a tensor."""

    dtype: str  # as the format writes it
    shape: tuple[int, ...]


class SafetensorsFile:
    """The tensors of one file, by name."""

    def __init__(self, path: Path) -> None:
        """Reads the header alone.

        Raises:
          UserError: the file cannot be read, its header is damaged, or the tensors of the header do
            not fill the file without gaps.
        """
        self.path = path
        try:
            self._file = safe_open(path, framework="numpy")
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118 (no dict)
            self.tensors = {name: TensorInfo(each.get_dtype(), tuple(each.get_shape())) for name, each in slices.items()}
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        except SafetensorError as error:
            raise UserError(f"{path} is cut short or damaged ({error}); fetch it again") from error

    def read(self, name: str) -> Float32[np.ndarray, "*shape"]:
        """The tensor as fp32.

        Raises:
          UserError: it is of a type that fp32 cannot hold, or not all of it is finite.
        """
        dtype = self.tensors[name].dtype
        if dtype not in READABLE:
            raise UserError(f"{self.path}: the tensor {name} is {dtype}; mhsh reads {', '.join(READABLE)}: convert it first")
        try:
            values = self._file.get_tensor(name).astype(np.float32)
        except ValueError as error:  # a shape with a 0 that no array can have
            raise UserError(f"{self.path}: the tensor {name} cannot be read ({error}); fetch it again") from error
        if not np.isfinite(values).all():
            raise UserError(f"{self.path}: the tensor {name} holds numbers that are not finite; take another checkpoint")
        return values
