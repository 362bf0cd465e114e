"""One safetensors file: its header is checked before anything in it is believed, its tensors are
read one at a time.

The format (github.com/huggingface/safetensors): the header's length in 8 bytes, little-endian; the
header, a JSON object of {name: {dtype, shape, data_offsets}}; then the tensors' bytes, without
gaps.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float32

from mhsh.errors import UserError
from mhsh.files import parse_object

LENGTH_BYTES = 8  # of the header's length
# As in the library that writes these files.
_LONGEST_HEADER = 100_000_000
# Bytes an element, of the types that a BERT checkpoint may hold: weights, buffers of positions,
# masks.
_ITEM_BYTES = {"F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1}
# Those that fp32 holds without loss.
_READABLE = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2"), "BF16": jnp.dtype("bfloat16")}


class TensorInfo(NamedTuple):
    """What the header says of a tensor."""

    dtype: str  # as the format writes it
    shape: tuple[int, ...]
    start: int  # of its bytes in the file


class SafetensorsFile:
    """The tensors of one file, by name."""

    def __init__(self, path: Path) -> None:
        """Reads and checks the header alone.

        Raises:
          UserError: the file cannot be read, or its header is cut short, no JSON, or at odds with
            itself or the file's size.
        """
        self.path = path
        try:
            with open(path, "rb") as file:
                size = file.seek(0, 2)
                file.seek(0)
                length = int.from_bytes(file.read(LENGTH_BYTES), "little")
                self._check_length(size, length)
                header = file.read(length)
        except OSError as error:
            raise UserError(f"cannot read {path}: {error.strerror or error}") from error
        fields = parse_object(header, f"the header of {path}")
        fields.pop("__metadata__", None)
        start = LENGTH_BYTES + length
        self.tensors = {name: self._tensor(name, entry, start) for name, entry in fields.items()}
        self._check_layout(start, size)

    def read(self, name: str) -> Float32[np.ndarray, "*shape"]:
        """The tensor as fp32.

        Raises:
          UserError: it is of a type that fp32 cannot hold, or not all of it is finite.
        """
        info = self.tensors[name]
        if info.dtype not in _READABLE:
            raise UserError(f"{self.path}: the tensor {name} is {info.dtype}; mhsh reads {', '.join(_READABLE)}: convert it first")
        values = np.fromfile(self.path, _READABLE[info.dtype], math.prod(info.shape), offset=info.start)
        values = values.reshape(info.shape).astype(np.float32)
        if not np.isfinite(values).all():
            raise UserError(f"{self.path}: the tensor {name} holds numbers that are not finite; take another checkpoint")
        return values

    def _check_length(self, size: int, length: int) -> None:
        if size < LENGTH_BYTES or length > size - LENGTH_BYTES or length > _LONGEST_HEADER:
            raise UserError(
                f"{self.path} is no whole safetensors file: its header would have {length} bytes, the file has {size}; "
                "fetch it again"
            )

    def _tensor(self, name: str, entry: Any, start: int) -> TensorInfo:
        where = f"the header of {self.path} is damaged: the tensor {name}"
        if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
            raise UserError(f"{where} has no dtype, shape and data_offsets; fetch it again")
        dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
        if not isinstance(dtype, str) or dtype not in _ITEM_BYTES:
            raise UserError(f"{self.path}: the tensor {name} is {dtype!r}; mhsh reads {', '.join(_READABLE)}: convert it first")
        if not _are_sizes(shape) or not _are_sizes(offsets) or len(offsets) != 2:
            raise UserError(f"{where} has shape {shape!r:.60} and data_offsets {offsets!r:.60}; fetch it again")
        num_bytes = math.prod(shape) * _ITEM_BYTES[dtype]
        if offsets[1] - offsets[0] != num_bytes:
            raise UserError(
                f"{where} of shape {shape} and type {dtype} has {num_bytes} bytes, its data_offsets {offsets} "
                f"give {offsets[1] - offsets[0]}; fetch it again"
            )
        return TensorInfo(dtype, tuple(shape), start + offsets[0])

    def _check_layout(self, start: int, size: int) -> None:
        """The tensors lie one behind the other and fill the file: none reads another's bytes, none
        the header's, none beyond.
        """
        end = start
        for name, info in sorted(self.tensors.items(), key=lambda item: (item[1].start, math.prod(item[1].shape))):
            if info.start != end:
                raise UserError(
                    f"the header of {self.path} is damaged: the tensor {name} begins at byte {info.start}, "
                    f"where {end} is next; fetch it again"
                )
            end += math.prod(info.shape) * _ITEM_BYTES[info.dtype]
        if end != size:
            raise UserError(f"{self.path} has {size} bytes, its header describes {end}; it is cut short or damaged: fetch it again")


def _are_sizes(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)
