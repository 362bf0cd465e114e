"""Where the weights of a checkpoint lie: one safetensors file, or several and their index. Pickles
and archives are refused.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from jaxtyping import Float32

from mhsh.errors import UserError
from mhsh.files import read_object
from mhsh.interop.safetensors_file import LENGTH_BYTES, SafetensorsFile

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
_SUFFIX = ".safetensors"
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".npy", ".npz")
_ARCHIVES = (".zip", ".tar", ".tgz", ".gz", ".bz2", ".xz", ".zst", ".7z")


@dataclasses.dataclass(frozen=True)
class Weights:
    """The tensors of a checkpoint, each in the file that holds it."""

    files: Mapping[str, SafetensorsFile]  # by the tensor's name

    @property
    def paths(self) -> list[Path]:
        """The files, each once, sorted."""
        return sorted({file.path for file in self.files.values()})

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape."""
        return self.files[name].tensors[name].shape

    def read(self, name: str) -> Float32[np.ndarray, "*shape"]:
        """The tensor; raises as `SafetensorsFile.read`."""
        return self.files[name].read(name)


def open_weights(source: Path) -> Weights:
    """The weights in the folder `source`, or in the file `source`; nothing but headers is read.

    Raises:
      UserError: there are none, they are pickled or in an archive, or a file or the index is
        damaged.
    """
    if not source.exists():
        raise UserError(f"there is no {source}; mhsh downloads nothing: give the folder that holds config.json and {WEIGHTS_FILE}")
    if not source.is_dir():
        return _single(source)
    if (source / WEIGHTS_FILE).exists():
        return _single(source / WEIGHTS_FILE)
    if (source / INDEX_FILE).exists():
        return _sharded(source)
    pickled = sorted(path.name for path in source.iterdir() if path.suffix in _PICKLED)
    if pickled:
        raise _is_pickled(source / pickled[0])
    raise UserError(f"{source} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; give the folder or the file with the weights")


def _single(path: Path) -> Weights:
    _check_kind(path)
    file = SafetensorsFile(path)
    return Weights(dict.fromkeys(file.tensors, file))


def _sharded(folder: Path) -> Weights:
    index = folder / INDEX_FILE
    weight_map = read_object(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise UserError(f"{index} has no weight_map; fetch it again")
    for name, file_name in weight_map.items():
        # A plain name with that ending cannot lead out of the folder, on any system.
        if not isinstance(file_name, str) or set(file_name) & set("/\\:\0") or not file_name.endswith(_SUFFIX):
            raise UserError(f"{index} has the tensor {name} in {file_name!r}; only {_SUFFIX} files of its own folder are opened")
    files: dict[str, SafetensorsFile] = {}
    for file_name in sorted(set(weight_map.values())):
        if not (folder / file_name).exists():
            raise UserError(f"{index} names {file_name}, which is missing; fetch the whole checkpoint")
        _check_kind(folder / file_name)
        files[file_name] = SafetensorsFile(folder / file_name)
    for file_name, file in files.items():
        listed = {name for name, where in weight_map.items() if where == file_name}
        differing = sorted(listed ^ file.tensors.keys())
        if differing:
            has = "has not" if differing[0] in listed else "has"
            raise UserError(
                f"{index} and {file_name} disagree: the file {has} the tensor {differing[0]}; fetch the whole checkpoint"
            )
    return Weights({name: files[file_name] for name, file_name in weight_map.items()})


def _check_kind(path: Path) -> None:
    """Refuses what is something else, by its name or its first bytes."""
    try:
        with open(path, "rb") as file:
            begin = file.read(265)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}") from error
    other = begin[LENGTH_BYTES : LENGTH_BYTES + 1] != b"{"  # else what looks like another kind's first bytes is a length
    # Pickles since Python 2.3 begin with 0x80 and their protocol's number.
    if path.suffix in _PICKLED or (other and begin[:2] in {bytes([0x80, protocol]) for protocol in range(2, 6)}):
        raise _is_pickled(path)
    if path.suffix in _ARCHIVES or (other and (begin.startswith((b"PK\3\4", b"\x1f\x8b")) or begin[257:262] == b"ustar")):
        raise UserError(f"{path} is an archive; unpack it where you can look at it, and give the folder with {WEIGHTS_FILE}")
    if begin.startswith(b"version https://git-lfs"):
        raise UserError(f"{path} only points to its content in Git LFS; fetch that with: git lfs pull")
    if path.suffix != _SUFFIX:
        raise UserError(f"{path} is no safetensors file by its name; give the folder or the .safetensors file with the weights")


def _is_pickled(path: Path) -> UserError:
    return UserError(
        f"{path} holds pickled Python objects, and to open it is to run whatever code it contains; mhsh reads safetensors alone: "
        "where you trust it, load it with transformers and write it again with save_pretrained, which makes " + WEIGHTS_FILE
    )
