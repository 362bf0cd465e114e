"""Reads data sets that TFDS has prepared on this machine: texts and sentence pairs.

Nothing is downloaded or prepared. TFDS is imported when a data set is opened: it takes a second. It
reads ArrayRecord without TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from mhsh.data.shards import check_unpacked
from mhsh.errors import UserError

# The default direction is out of English, as in the papers on translation.
_SOURCE_LANGUAGE = "en"
_NAME = re.compile(
    r"(?P<dataset>[\w/.-]+(?::\d[\w.]*)?)"  # wmt14_translate/de-en, wikipedia/20230601.en, perhaps with a version: :1.0.0
    r"(?::(?P<split>[a-z_]\w*(?:\[[^\]]*\])?))?"  # validation, or a slice such as train[:1000]
    r"(?::(?P<direction>[a-z_]+-[a-z_]+))?"  # en-de
)
# Records are read in groups: large enough that seeking costs little, small enough for memory.
_RECORDS_PER_READ = 1024


class _PreparedSplit(NamedTuple):
    """One split of a data set, or a slice of it."""

    name: str  # DATASET[:SPLIT[:SOURCE-TARGET]], as the user wrote it
    direction: str | None
    features: Any  # TFDS's description of every feature, by name
    stored: Any  # TFDS's data source, in the order of the files


def read_tfds(name: str) -> Iterator[str]:
    """The feature `text` of DATASET[:SPLIT], such as wikipedia/20230601.en:train[:1%], in the order
    of the files, in TFDS_DATA_DIR or ~/tensorflow_datasets. Raises UserError where the data set is
    not prepared there or not as ArrayRecord, or has no such split, or an empty one.
    """
    split = _open(name)
    if split.direction is not None:
        raise UserError(f"tfds:{name}: {split.direction} is only for sentence pairs; write tfds:DATASET[:SPLIT]")
    return (text for (text,) in _records(split, "text"))


def read_pairs(name: str) -> Iterator[tuple[str, ...]]:
    """The (source, target) sentences of DATASET[:SPLIT[:SOURCE-TARGET]], such as
    wmt14_translate/de-en:train[:1000]:de-en; by default of train, out of English. Raises UserError
    as `read_tfds`, or the data set lacks a language.
    """
    split = _open(name)
    return _records(split, *_languages(name, split.direction, list(split.features)))


def _records(split: _PreparedSplit, *names: str) -> Iterator[tuple[str, ...]]:
    """The named features of every record, which are texts. Raises UserError where there is no such
    feature, or a text is not UTF-8.
    """
    for name in names:
        if name not in split.features:
            raise UserError(
                f"tfds:{split.name} has the features {', '.join(sorted(split.features))}, but not {name!r}; name a data set "
                "that has it"
            )
    for start in range(0, len(split.stored), _RECORDS_PER_READ):
        numbers = range(start, min(start + _RECORDS_PER_READ, len(split.stored)))
        for number, record in zip(numbers, split.stored.__getitems__(numbers), strict=True):
            try:
                texts = tuple(_text(record[name]) for name in names)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"tfds:{split.name}: record {number} is not UTF-8: {error.reason} at byte {error.start}; prepare the data "
                    "set again"
                ) from error
            yield texts


def _languages(name: str, direction: str | None, languages: Sequence[str]) -> tuple[str, str]:
    if direction is not None:
        source, target = direction.split("-")
        return source, target
    if len(languages) == 2 and _SOURCE_LANGUAGE in languages:
        (target,) = [language for language in languages if language != _SOURCE_LANGUAGE]
        return _SOURCE_LANGUAGE, target
    raise UserError(f"tfds:{name} has {', '.join(languages)}; name two of them, as in tfds:DATASET:SPLIT:SOURCE-TARGET")


def _open(name: str) -> _PreparedSplit:
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"tfds:{name} is not a name of a data set; write DATASET[:SPLIT[:SOURCE-TARGET]], such as tfds:wmt14_translate/de-en, "
            "tfds:wmt14_translate/de-en:validation:en-de or tfds:wikipedia/20230601.en:train[:10%]"
        )
    builder, split = _builder(match["dataset"]), match["split"] or "train"
    whole = split.partition("[")[0]
    if whole not in builder.info.splits:
        raise UserError(f"tfds:{name}: unknown split {whole!r}; allowed: {', '.join(builder.info.splits)}")
    try:
        count = builder.info.splits[split].num_examples
    except ValueError as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise UserError(f"tfds:{name}: {reason}; write a slice as in {whole}[:1000] or {whole}[:10%]") from error
    if not count:
        raise UserError(f"tfds:{name}: {split} has no records; name a larger part")
    try:
        stored = builder.as_data_source(split)
    except NotImplementedError as error:
        raise UserError(
            f"tfds:{name} is stored as {builder.info.file_format.value}, which only TensorFlow reads; run: tfds build "
            f"{match['dataset']} --file_format=array_record"
        ) from error
    for part in builder.info.splits[split].file_instructions:
        check_unpacked(part.filename)
    return _PreparedSplit(name, match["direction"], builder.info.features, stored)


def _builder(dataset: str) -> Any:
    from tensorflow_datasets.core import constants, read_only_builder, registered

    try:
        # Only from files: TFDS knows how to prepare many data sets that are not prepared here.
        return read_only_builder.builder_from_files(dataset)
    except registered.DatasetNotFoundError as error:
        raise UserError(
            f"tfds:{dataset} is not prepared in {constants.DATA_DIR}; run: tfds build {dataset} --file_format=array_record, or set "
            "TFDS_DATA_DIR to the folder that has it"
        ) from error


def _text(value: str | bytes) -> str:
    return value.decode("utf-8") if isinstance(value, bytes) else value
