"""The weights of a checkpoint: one safetensors file, or several and their index. The library judges
them; nothing else is opened, so nothing is ever unpickled.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import numpy as np
from jaxtyping import Float32
from msgspec import Meta, Struct
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from mhsh.errors import UserError
from mhsh.storage.bucket import is_remote
from mhsh.storage.files import read_object
from mhsh.storage.questions import exists, is_dir

CONFIG_FILE, WEIGHTS_FILE = "config.json", "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
READABLE = ("F32", "F16", "BF16")  # the types that fp32 holds without loss
# A plain name with that ending cannot lead out of the folder, on any system.
FileName = Annotated[str, Meta(pattern=r"^[^/\\:\0]+\.safetensors$")]


@contextlib.contextmanager
def wrap_file_errors(path: Path, advice: str = "fetch it again") -> Iterator[None]:
    """Turns an error of safetensors, msgspec or the file system inside the `with` into a UserError
    of one line about the file at `path`.
    """
    try:
        yield
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    except (SafetensorError, msgspec.ValidationError, ValueError) as error:
        raise UserError(f"cannot import {path}: {str(error)[:300]}; {advice}") from error


class SafetensorsFile:
    """The tensors of one file, by name."""

    def __init__(self, path: Path) -> None:
        """Reads the header alone. Raises UserError where it is damaged or does not fit the file."""
        self.path = path
        with wrap_file_errors(path, "mhsh opens safetensors alone, whole (git lfs pull; save_pretrained)"):
            self._file = safe_open(path, framework="numpy")
            slices = {name: self._file.get_slice(name) for name in self._file.keys()}  # noqa: SIM118 (no dict)
            self.shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
            self._dtypes = {name: part.get_dtype() for name, part in slices.items()}

    def read(self, name: str) -> Float32[np.ndarray, "*shape"]:
        """The tensor as fp32. Raises UserError where fp32 cannot hold it, or it is not finite."""
        with wrap_file_errors(self.path, "convert it, or take another checkpoint"):
            if self._dtypes[name] not in READABLE:
                raise ValueError(f"the tensor {name} is {self._dtypes[name]}, not one of {', '.join(READABLE)}")
            values = self._file.get_tensor(name).astype(np.float32)
            if not np.isfinite(values).all():
                raise ValueError(f"the tensor {name} holds numbers that are not finite")
        return values


def write_weights(folder: Path, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes WEIGHTS_FILE beside CONFIG_FILE. Raises UserError where there is no room for it."""
    try:
        # transformers reads a file of weights only if it says that it is for PyTorch.
        save_file(dict(tensors), folder / WEIGHTS_FILE, metadata={"format": "pt"})
    except SafetensorError as error:
        raise UserError(f"cannot write {folder / WEIGHTS_FILE}: {error}; make room, or choose another --out") from error
    # The library makes a file that its owner alone may read.
    (folder / WEIGHTS_FILE).chmod((folder / CONFIG_FILE).stat().st_mode)


class _WeightsIndex(Struct):
    weight_map: dict[str, FileName]


def checkpoint_folder(source: str) -> Path:
    """The folder of a checkpoint that is named by it, or by a file in it. Raises UserError where it
    is in a bucket.
    """
    if is_remote(source):
        raise UserError(f"{source} is in a bucket; copy the checkpoint to a disk, from which mhsh import reads it")
    return Path(source) if is_dir(source) else Path(source).parent


def open_weights(source: Path) -> dict[str, SafetensorsFile]:
    """The file that holds each tensor, by its name, of the folder or the file `source`; headers
    alone are read. Raises UserError where there is none, or a file or the index is damaged.
    """
    if not exists(source):
        raise UserError(
            f"{source} does not exist; mhsh downloads nothing: give the folder that holds {CONFIG_FILE} and {WEIGHTS_FILE}"
        )
    if is_dir(source) and not exists(source / WEIGHTS_FILE):
        if exists(source / INDEX_FILE):
            return _open_shards(source / INDEX_FILE)
        raise UserError(
            f"{source} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; mhsh opens no pickle, as that runs the code in it: where you "
            "trust one, load it with transformers and write it again with save_pretrained"
        )
    file = SafetensorsFile(source / WEIGHTS_FILE if is_dir(source) else source)
    return dict.fromkeys(file.shapes, file)


def _open_shards(index: Path) -> dict[str, SafetensorsFile]:
    with wrap_file_errors(index, "fetch the whole checkpoint"):
        weight_map = msgspec.convert(read_object(index), _WeightsIndex).weight_map
        files = {name: SafetensorsFile(index.parent / name) for name in sorted(set(weight_map.values()))}
        listed = set(weight_map.items())
        held = {(tensor, name) for name, file in files.items() for tensor in file.shapes}
        for tensor, name in sorted(listed ^ held):
            raise ValueError(f"{name} {'has' if (tensor, name) in held else 'lacks'} the tensor {tensor}, against the index")
    return {tensor: files[name] for tensor, name in weight_map.items()}
