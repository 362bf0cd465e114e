"""Data sets that TFDS has prepared on this machine: records, texts, sentence pairs; nothing is
downloaded or prepared here.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from mhsh.data.translation.pairs import Pair
from mhsh.errors import UserError

# The paper's direction: out of English, where the data set has it and the name says nothing.
_SOURCE_LANGUAGE = "en"
_DEFAULT_SPLIT = "train"
_NAME = re.compile(
    r"(?P<dataset>[\w/.-]+(?::\d[\w.]*)?)"  # wmt14_translate/de-en, wikipedia/20230601.en, perhaps with a version: :1.0.0
    r"(?::(?P<split>[a-z_]\w*(?:\[[^\]]*\])?))?"  # validation, or a slice such as train[:1000]
    r"(?::(?P<direction>[a-z_]+-[a-z_]+))?"  # en-de
)
_TEXT = "text"
# Records read at once: enough that opening and seeking cost little, few enough to stay small in
# memory.
_RECORDS_AT_ONCE = 1024


class _Wanted(NamedTuple):
    dataset: str
    split: str
    direction: str | None


class PreparedSplit(NamedTuple):
    """One split of a data set, or a slice of it."""

    name: str  # as it was asked for: DATASET, or DATASET:SPLIT
    builder: Any  # TFDS's
    split: str

    @property
    def features(self) -> Any:
        """TFDS's description of every feature, by its name."""
        return self.builder.info.features

    def records(self, *names: str) -> Iterator[dict[str, Any]]:
        """The named features of every record, in the order of the files, as JSON has them: str,
        int, float, bool, list or dict.

        Files in ArrayRecord are read without TensorFlow, those in TFRecord with it.

        Raises:
          UserError: there is no such feature, TensorFlow is needed and not installed, or (in the
            middle) a text that is not UTF-8.
        """
        for name in names:
            if name not in self.features:
                raise UserError(
                    f"tfds:{self.name} has {', '.join(sorted(self.features))}, but not {name!r}; name a data set that has it"
                )
        return self._decoded(names, _records(self.name, self.builder, self.split))

    def _decoded(self, names: Sequence[str], records: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for number, record in enumerate(records):
            try:
                decoded = {name: _plain(record[name]) for name in names}
            except UnicodeDecodeError as error:
                raise UserError(
                    f"tfds:{self.name}: record {number} is not UTF-8: {error.reason} at byte {error.start}; prepare the data "
                    "set anew"
                ) from error
            yield decoded


def open_split(name: str) -> PreparedSplit:
    """A split whose records are no sentence pairs.

    Args:
      name: DATASET[:SPLIT], as for `read_pairs`, such as squad/v2.0:validation or
        wikipedia/20230601.en:train[:1%].

    Raises:
      UserError: TFDS is not installed, the data set is not prepared here, there is no such split,
        or it has no records.
    """
    wanted = _parse(name)
    if wanted.direction is not None:
        raise UserError(f"tfds:{name}: {wanted.direction} is for sentence pairs; write tfds:DATASET[:SPLIT]")
    return _open(name, wanted)


def read_texts(name: str) -> Iterator[str]:
    """The feature "text" of every record of one split, in the order of its files.

    Args:
      name: DATASET[:SPLIT], as for `open_split`.

    Raises:
      UserError: as `open_split` and `PreparedSplit.records`.
    """
    for record in open_split(name).records(_TEXT):
        yield record[_TEXT]


def read_pairs(name: str) -> Iterator[Pair]:
    """The pairs of one split, in the order of its files.

    Args:
      name: DATASET[:SPLIT[:SOURCE-TARGET]], such as wmt14_translate/de-en,
        wmt14_translate/de-en:validation or wmt14_translate/de-en:train[:1000]:de-en. SPLIT is train
        where it is not given (and may be a slice in TFDS's notation), the source language English.
        The folder is that of TFDS: TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Raises:
      UserError: as `open_split` and `PreparedSplit.records`, or the data set is no translation or
        lacks a language.
    """
    wanted = _parse(name)
    split = _open(name, wanted)
    source, target = _languages(name, wanted.direction, [*split.features])
    for record in split.records(source, target):
        yield Pair(record[source], record[target])


def _parse(name: str) -> _Wanted:
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"tfds:{name} is no name of a data set; write DATASET[:SPLIT[:SOURCE-TARGET]], for example tfds:wmt14_translate/de-en, "
            "tfds:wmt14_translate/de-en:validation:en-de or tfds:wikipedia/20230601.en:train[:10%]"
        )
    return _Wanted(match["dataset"], match["split"] or _DEFAULT_SPLIT, match["direction"])


def _open(name: str, wanted: _Wanted) -> PreparedSplit:
    builder = _builder(wanted.dataset)
    whole = wanted.split.partition("[")[0]
    if whole not in builder.info.splits:
        raise UserError(f"tfds:{name}: there is no split {whole!r}; allowed: {', '.join(builder.info.splits)}")
    try:
        count = builder.info.splits[wanted.split].num_examples
    except ValueError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"tfds:{name}: {reason}; write a slice as in {whole}[:1000] or {whole}[:10%]") from error
    if not count:
        raise UserError(f"tfds:{name}: {wanted.split} has no records; name a larger part")
    return PreparedSplit(name, builder, wanted.split)


def _builder(dataset: str) -> Any:
    try:
        read_only: Any = importlib.import_module("tensorflow_datasets.core.read_only_builder")
        registered: Any = importlib.import_module("tensorflow_datasets.core.registered")
    except ModuleNotFoundError as error:
        raise UserError(f"tfds:{dataset} needs TensorFlow Datasets ({error}); pip install 'mhsh[tfds]'") from error
    try:
        # From its files alone: what TFDS knows how to prepare, but did not prepare, is not there.
        return read_only.builder_from_files(dataset)
    except registered.DatasetNotFoundError as error:
        data_dir = importlib.import_module("tensorflow_datasets.core.constants").DATA_DIR
        raise UserError(
            f"tfds:{dataset} is not prepared in {data_dir}; run: tfds build {dataset} --file_format=array_record, or set "
            "TFDS_DATA_DIR to the folder that has it"
        ) from error


def _languages(name: str, direction: str | None, languages: list[str]) -> tuple[str, str]:
    if direction is not None:
        source, target = direction.split("-")
    elif len(languages) == 2 and _SOURCE_LANGUAGE in languages:
        source, (target,) = _SOURCE_LANGUAGE, [language for language in languages if language != _SOURCE_LANGUAGE]
    else:
        raise UserError(f"tfds:{name} has {', '.join(languages)}; name two of them, as in tfds:DATASET:SPLIT:SOURCE-TARGET")
    for language in (source, target):
        if language not in languages:
            raise UserError(f"tfds:{name}: there is no language {language!r}; allowed: {', '.join(languages)}")
    return source, target


def _records(name: str, builder: Any, split: str) -> Iterator[dict[str, Any]]:
    try:
        records = builder.as_data_source(split)
    except NotImplementedError:
        return _tensorflow_records(name, builder, split)
    return (
        record
        for start in range(0, len(records), _RECORDS_AT_ONCE)
        for record in records.__getitems__(range(start, min(start + _RECORDS_AT_ONCE, len(records))))
    )


def _tensorflow_records(name: str, builder: Any, split: str) -> Iterator[dict[str, Any]]:
    try:
        importlib.import_module("tensorflow")
    except ModuleNotFoundError as error:
        raise UserError(
            f"tfds:{name} is stored as {builder.info.file_format.value}, which only TensorFlow reads ({error}); pip install "
            "'mhsh[tfds]', or prepare it anew with --file_format=array_record"
        ) from error
    tfds: Any = importlib.import_module("tensorflow_datasets")
    # One file after the other, as a data source reads them.
    in_order = tfds.ReadConfig(interleave_cycle_length=1)
    return iter(tfds.as_numpy(builder.as_dataset(split=split, read_config=in_order, shuffle_files=False)))


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, bytes):
        return value.decode("utf-8")
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return {name: _plain(each) for name, each in value.items()} if isinstance(value, dict) else value
