"""Pairs and texts of data sets that TFDS wrote, in processes of their own: with TFDS, or what is
said where it is not there.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from mhsh.data.tfds import _languages, _parse
from mhsh.data.translation.pairs import Pair, read_pairs
from mhsh.errors import UserError
from tests.data.tfds_process import needs_tensorflow, needs_tfds, python

# A data set with the features of wmt14_translate/de-en, prepared by TFDS itself. Its order is
# TFDS's own, by hashed keys.
PREPARE = """
import sys
import tensorflow_datasets as tfds


class Wmt14Translate(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="de-en")]

    def _info(self):
        features = tfds.features.Translation(languages=["de", "en"])
        return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=("de", "en"))

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples(2500), "validation": self._generate_examples(7)}

    def _generate_examples(self, count):
        for number in range(count):
            yield number, {"de": f"Zahl {number} \\u00fc\\u2028", "en": f"number {number}"}


class Wikipedia(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    VERSION = tfds.core.Version("1.0.0")
    BUILDER_CONFIGS = [tfds.core.BuilderConfig(name="20230601.en")]

    def _info(self):
        features = tfds.features.FeaturesDict({"text": tfds.features.Text(), "title": tfds.features.Text()})
        return tfds.core.DatasetInfo(builder=self, features=features)

    def _split_generators(self, dl_manager):
        return {"train": self._generate_examples()}

    def _generate_examples(self):
        for number in range(40):
            text = f"Article {number} \\u00fc\\u2028 begins.\\n\\n  It goes on. \\r\\n \\n\\nIt ends." if number else " \\n"
            yield number, {"text": text, "title": f"Title {number}"}


for builder in (
    Wmt14Translate(config="de-en", file_format=sys.argv[1]),
    Wikipedia(config="20230601.en", file_format=sys.argv[1]),
):
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
"""
READ = """
import sys
from mhsh.data.translation.pairs import read_pairs
from mhsh.data.sources import documents
from mhsh.errors import UserError
try:
    for pair in read_pairs(sys.argv[1]) if sys.argv[3] == "pairs" else zip(documents(sys.argv[1])):
        sys.stdout.buffer.write("\\t".join(pair).replace("\\n", "|").encode() + b"\\n")
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
# TensorFlow itself takes in jax where it is installed.
assert {"tensorflow", "jax"}.isdisjoint(sys.modules) or sys.argv[2] == "tfrecord"
"""


def prepare(folder: Path, file_format: str) -> Path:
    python(PREPARE, folder, file_format)
    return folder


@pytest.fixture(scope="module")
def array_record(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("array_record"), "array_record")


def read_lines(data_dir: Path, source: str, file_format: str, kind: str) -> list[str]:
    """The pairs or documents, a line each."""
    return python(READ, data_dir, source, file_format, kind).split("\n")[:-1]


def read(data_dir: Path, source: str, file_format: str = "array_record") -> list[Pair]:
    return [Pair(*line.split("\t")) for line in read_lines(data_dir, source, file_format, "pairs")]


def expected(count: int) -> set[Pair]:
    return {Pair(f"number {number}", f"Zahl {number} \u00fc\u2028") for number in range(count)}


@needs_tfds
def test_array_record_is_read_without_tensorflow(array_record):
    pairs = read(array_record, "tfds:wmt14_translate/de-en")
    assert len(pairs) == 2500 and set(pairs) == expected(2500)
    validation = read(array_record, "tfds:wmt14_translate/de-en:validation")
    assert len(validation) == 7 and set(validation) == expected(7)
    assert read(array_record, "tfds:wmt14_translate/de-en:1.0.0:train[10:1500]:de-en") == [
        Pair(pair.target, pair.source) for pair in pairs[10:1500]
    ]


@needs_tfds
def test_articles_are_documents(array_record):
    """Their paragraphs a line each, blank lines left out; the one without text is an empty
    document.
    """

    def read_documents(source: str) -> list[str]:
        return read_lines(array_record, source, "array_record", "documents")

    found = read_documents("tfds:wikipedia/20230601.en")
    assert len(found) == 40
    assert set(found) == {f"Article {number} \u00fc\u2028 begins.|It goes on.|It ends." for number in range(1, 40)} | {""}
    assert read_documents("tfds:wikipedia/20230601.en:1.0.0:train[5:9]") == found[5:9]
    with pytest.raises(UserError, match=r"tfds:wmt14_translate/de-en has de, en, but not 'text'; name a data set that has it"):
        read_documents("tfds:wmt14_translate/de-en")


@needs_tfds
@needs_tensorflow
@pytest.mark.slow
def test_tfrecord_is_read_with_tensorflow(array_record, tmp_path):
    folder = prepare(tmp_path, "tfrecord")
    assert read(folder, "tfds:wmt14_translate/de-en", "tfrecord") == read(array_record, "tfds:wmt14_translate/de-en")


@needs_tfds
@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("wmt19_translate/de-en", r"is not prepared in .*; run: tfds build wmt19_translate/de-en --file_format=array_record"),
        ("wmt14_translate/fr-en", r"is not prepared in .*; run: tfds build wmt14_translate/fr-en --file_format=array_record"),
        ("wmt14_translate/de-en:2.0.0", r"is not prepared in .*; run: tfds build"),
        ("wmt14_translate/de-en:test", r"there is no split 'test'; allowed: train, validation"),
        ("wmt14_translate/de-en:test[:5]", r"there is no split 'test'; allowed: train, validation"),
        (
            "wmt14_translate/de-en:train[abc]",
            r"Error parsing split 'train\[abc\]'.*; write a slice as in train\[:1000\] or train\[:10%\]",
        ),
        (
            "wmt14_translate/de-en:validation[:8]",
            r"Requested slice \[:8\] incompatible with 7 examples; write a slice as in validation",
        ),
        ("wmt14_translate/de-en:validation[:5%]", r"validation\[:5%\] has no records; name a larger part"),
        ("wmt14_translate/de-en:train:en-fr", r"there is no language 'fr'; allowed: de, en"),
        ("wikipedia/20230601.en:train:en-de", r"en-de is for sentence pairs; write tfds:DATASET\[:SPLIT\]"),
        ("wikipedia/20230601.de", r"is not prepared in .*; run: tfds build wikipedia/20230601\.de --file_format=array_record"),
        ("wikipedia/20230601.en:test", r"there is no split 'test'; allowed: train"),
    ],
)
def test_what_is_not_there_is_named(array_record, source, complaint):
    with pytest.raises(UserError, match=rf"^tfds:{re.escape(source)}.*{complaint}"):
        read_lines(array_record, f"tfds:{source}", "array_record", "documents" if "wikipedia" in source else "pairs")


def test_without_tfds_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorflow_datasets", None)
    for name in [name for name in sys.modules if name.startswith("tensorflow_datasets.")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match=r"pip install 'mhsh\[tfds\]'"):
        next(read_pairs("tfds:wmt14_translate/de-en"))


@pytest.mark.parametrize(
    ("name", "parsed"),
    [
        ("wmt14_translate/de-en", None),
        ("wmt14_translate/de_en", ("wmt14_translate/de_en", "train", None)),
        ("para_crawl:1.2.0", ("para_crawl:1.2.0", "train", None)),
        ("para_crawl:validation", ("para_crawl", "validation", None)),
        ("a/b:train[10%:20%]:de-en", ("a/b", "train[10%:20%]", "de-en")),
        ("wikipedia/20230601.en", None),
        ("wikipedia/20230601.en:1.0.0:train[:1%]", ("wikipedia/20230601.en:1.0.0", "train[:1%]", None)),
    ],
)
def test_names(name, parsed):
    assert _parse(name) == (parsed or (name, "train", None))


@pytest.mark.parametrize("name", ["", "a b", "wmt14_translate/de-en:train:en", "x:train:en-de:more"])
def test_names_that_are_none(name):
    with pytest.raises(UserError, match=r"write DATASET\[:SPLIT\[:SOURCE-TARGET\]\]"):
        _parse(name)


def test_the_direction_is_out_of_english_where_nothing_is_said():
    assert _languages("x", None, ["de", "en"]) == ("en", "de")
    assert _languages("x", "de-en", ["de", "en"]) == ("de", "en")
    with pytest.raises(UserError, match="has de, fr; name two of them"):
        _languages("x", None, ["de", "fr"])
