"""Reads sentence pairs of translation data sets that TFDS has prepared on this machine.

Nothing is downloaded or prepared. TFDS is imported when a data set is opened: it takes a second. It
reads ArrayRecord without TensorFlow.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from mhsh.data.shards import check_unpacked
from mhsh.errors import UserError

# The default direction is out of English, as in the papers on translation.
_SOURCE_LANGUAGE = "en"
_DEFAULT_SPLIT = "train"
_NAME = re.compile(
    r"(?P<dataset>[\w/.-]+(?::\d[\w.]*)?)"  # wmt14_translate/de-en, perhaps with a version: :1.0.0
    r"(?::(?P<split>[a-z_]\w*(?:\[[^\]]*\])?))?"  # validation, or a slice such as train[:1000]
    r"(?::(?P<direction>[a-z_]+-[a-z_]+))?"  # en-de
)
# Records are read in groups: large enough that seeking costs little, small enough for memory.
_RECORDS_PER_READ = 1024


def read_pairs(name: str) -> Iterator[tuple[str, str]]:
    """The (source, target) sentences of DATASET[:SPLIT[:SOURCE-TARGET]], in the order of the files,
    such as wmt14_translate/de-en:train[:1000]:de-en; by default of train, out of English.

    The data set is in TFDS_DATA_DIR or ~/tensorflow_datasets. Raises UserError where it is not
    prepared there or not as ArrayRecord, has no such split, an empty one, or not that language, or
    a text is not UTF-8.
    """
    match = _NAME.fullmatch(name)
    if match is None:
        raise UserError(
            f"tfds:{name} is not a name of a data set; write DATASET[:SPLIT[:SOURCE-TARGET]], such as "
            "tfds:wmt14_translate/de-en or tfds:wmt14_translate/de-en:validation:en-de"
        )
    features, stored = _open(name, match["dataset"], match["split"] or _DEFAULT_SPLIT)
    pair = _languages(name, match["direction"], features)
    for start in range(0, len(stored), _RECORDS_PER_READ):
        numbers = range(start, min(start + _RECORDS_PER_READ, len(stored)))
        for number, record in zip(numbers, stored.__getitems__(numbers), strict=True):
            try:
                source, target = (_text(record[language]) for language in pair)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"tfds:{name}: record {number} is not UTF-8: {error.reason} at byte {error.start}; prepare the data set again"
                ) from error
            yield source, target


def _languages(name: str, direction: str | None, languages: Sequence[str]) -> tuple[str, str]:
    if direction is None:
        if len(languages) != 2 or _SOURCE_LANGUAGE not in languages:
            raise UserError(f"tfds:{name} has {', '.join(languages)}; name two of them, as in tfds:DATASET:SPLIT:SOURCE-TARGET")
        (target,) = [language for language in languages if language != _SOURCE_LANGUAGE]
        return _SOURCE_LANGUAGE, target
    source, target = direction.split("-")
    for language in (source, target):
        if language not in languages:
            raise UserError(f"tfds:{name} has {', '.join(sorted(languages))}, but not {language!r}; name two of them")
    return source, target


def _open(name: str, dataset: str, split: str) -> tuple[list[str], Any]:
    """The features of a data set, and the records of its split, in the order of the files."""
    builder = _builder(dataset)
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
            f"tfds:{name} is stored as {builder.info.file_format.value}, which only TensorFlow reads; run: tfds build {dataset} "
            "--file_format=array_record"
        ) from error
    for part in builder.info.splits[split].file_instructions:
        check_unpacked(part.filename)
    return list(builder.info.features), stored


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
