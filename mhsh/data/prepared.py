"""Opening a folder that mhsh prepare has finished, for a run that asks for rows of its kind."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

from etils import epath

from mhsh.config.schema import DataConfig, TranslationDataConfig
from mhsh.data.shards import StoredRows, open_rows
from mhsh.data.splits import TRAIN, VALIDATION
from mhsh.errors import UserError

# Fields that are empty where the rows are prepared, as they were used up then.
_USED_UP = ("validation_source", "vocab_path")


@runtime_checkable
class Vocabulary(Protocol):
    """A tokenizer, of whatever task."""

    @property
    def vocab_size(self) -> int: ...

    @property
    def fingerprint(self) -> str: ...

    def save(self, path: epath.PathLike) -> None: ...


AnyVocabulary = TypeVar("AnyVocabulary", bound=Vocabulary)


@dataclasses.dataclass(frozen=True)
class Prepared(Generic[AnyVocabulary]):
    """The rows of both splits, and the vocabulary that goes with them."""

    train: StoredRows
    validation: StoredRows
    tokenizer: AnyVocabulary

    @property
    def fingerprint(self) -> str:
        """SHA-256, in hex, over vocabulary and rows."""
        parts = (self.tokenizer.fingerprint, self.train.fingerprint, self.validation.fingerprint)
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


def prepared_folder(data: DataConfig | TranslationDataConfig) -> Path | None:
    """DIR where data.source is arrayrecord:DIR, else None."""
    kind, _, folder = data.source.partition(":")
    return Path(folder).expanduser() if kind == "arrayrecord" and folder else None


def open_prepared(
    folder: Path,
    data: DataConfig | TranslationDataConfig,
    wanted: Mapping[str, Any],
    load: Callable[[epath.PathLike], AnyVocabulary],
    vocab_name: str,
    saved_vocab: epath.PathLike | None,
) -> Prepared[AnyVocabulary]:
    """The rows of a folder, to be read as they are needed.

    Args:
      wanted: what the rows must have been prepared with: values by the names of fields of the
        config, the objective first.
      load: reads a vocabulary; raises UserError where it does not fit the model.
      vocab_name: the vocabulary's file in the folder.
      saved_vocab: the vocabulary of the run, where it has one already.

    Raises:
      UserError: the folder is unfinished, damaged, or holds other rows or another vocabulary than
        wanted, or the config asks for what was decided when it was prepared.
    """
    for name in _USED_UP:
        if getattr(data, name, ""):
            raise UserError(
                f"data.{name} = {getattr(data, name)!r}, but data.source = {data.source!r} has its own, from when it was prepared; "
                f"empty data.{name}"
            )
    train, validation = (open_rows(folder / split) for split in (TRAIN, VALIDATION))
    # Rows of translation do not say their objective: there were no others when their index was made
    # up.
    meta = {"objective": "translation"} | train.meta
    for name, value in wanted.items():
        there = meta[name.partition(".")[2]]
        if there != value:
            raise UserError(
                f"{folder} was prepared with {name} = {there!r}, not {value!r}; set it to that, or prepare again into another "
                "folder"
            )
    tokenizer = load(folder / vocab_name)
    if saved_vocab is not None and load(saved_vocab).fingerprint != tokenizer.fingerprint:
        raise UserError(
            f"{folder / vocab_name} is not the vocabulary of the run, {saved_vocab}; put back the folder the run began with"
        )
    return Prepared(train, validation, tokenizer)
