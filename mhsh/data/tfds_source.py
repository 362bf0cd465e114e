"""Sentence pairs, or texts, of a data set that TFDS has prepared on this machine; nothing is downloaded or prepared here."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from mhsh.data.pairs import Pair
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
# Records read at once: enough that opening and seeking cost little, few enough to stay small in memory.
_RECORDS_AT_ONCE = 1024


class _Wanted(NamedTuple):
    dataset: str
    split: str
    direction: str | None


def read_pairs(name: str) -> Iterator[Pair]:
    """The pairs of one split, in the order of its files.

    Args:
      name: DATASET[:SPLIT[:SOURCE-TARGET]], such as wmt14_translate/de-en, wmt14_translate/de-en:validation or
        wmt14_translate/de-en:train[:1000]:de-en. SPLIT is train where it is not given (and may be a slice in TFDS's notation),
        the source language English. The folder is that of TFDS: TFDS_DATA_DIR, or ~/tensorflow_datasets.

    Files in ArrayRecord are read without TensorFlow, those in TFRecord with it.

    Raises:
      UserError: TFDS or TensorFlow is not installed, the data set is not prepared here or is no translation, no such split or
        language, or (in the middle) a sentence that is not UTF-8.
    """
    wanted, builder = _opened(name)
    source, target = _languages(name, wanted.direction, [*builder.info.features])
    for number, record in enumerate(_records(name, builder, wanted.split)):
        yield Pair(_text(name, number, record[source]), _text(name, number, record[target]))


def read_texts(name: str) -> Iterator[str]:
    """The feature "text" of every record of one split, in the order of its files.

    Args:
      name: DATASET[:SPLIT], as for `read_pairs`, such as wikipedia/20230601.en or wikipedia/20230601.en:train[:1%].

    Raises:
      UserError: as `read_pairs`, or the data set has no such feature.
    """
    wanted, builder = _opened(name)
    if wanted.direction is not None:
        raise UserError(f"tfds:{name}: {wanted.direction} is for sentence pairs; write tfds:DATASET[:SPLIT]")
    if _TEXT not in builder.info.features:
        raise UserError(f"tfds:{name} has {', '.join(builder.info.features)}, but not {_TEXT!r}; name a data set that has it")
    for number, record in enumerate(_records(name, builder, wanted.split)):
        yield _text(name, number, record[_TEXT])


def _opened(name: str) -> tuple[_Wanted, Any]:
    wanted = _parse(name)
    builder = _builder(wanted.dataset)
    if wanted.split.partition("[")[0] not in builder.info.splits:
        raise UserError(f"tfds:{name}: there is no split {wanted.split!r}; allowed: {', '.join(builder.info.splits)}")
    return wanted, builder


def _parse(name: str) -> _Wanted:
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"tfds:{name} is no name of a data set; write DATASET[:SPLIT[:SOURCE-TARGET]], for example tfds:wmt14_translate/de-en, "
            "tfds:wmt14_translate/de-en:validation:en-de or tfds:wikipedia/20230601.en:train[:10%]"
        )
    return _Wanted(match["dataset"], match["split"] or _DEFAULT_SPLIT, match["direction"])


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


def _text(name: str, number: int, content: bytes) -> str:
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UserError(
            f"tfds:{name}: record {number} is not UTF-8: {error.reason} at byte {error.start}; prepare the data set anew"
        ) from error
