"""Pairs out of data sets that TFDS wrote, in a process of its own: with TFDS or, where that is not installed, what is said then."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.data.pairs import Pair, read_pairs
from mhsh.data.tfds_source import _languages, _parse
from mhsh.errors import UserError

ROOT = Path(__file__).parents[2]
needs_tfds = pytest.mark.skipif(importlib.util.find_spec("tensorflow_datasets") is None, reason="the tfds extra is not installed")
needs_tensorflow = pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="TensorFlow is not installed")

# A data set with the features of wmt14_translate/de-en, prepared by TFDS itself. Its order is TFDS's own, by hashed keys.
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


builder = Wmt14Translate(data_dir=sys.argv[1], config="de-en", file_format=sys.argv[2])
builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=3))
"""
READ = """
import sys
from mhsh.data.pairs import read_pairs
from mhsh.errors import UserError
try:
    for pair in read_pairs(sys.argv[1]):
        sys.stdout.buffer.write("\\t".join(pair).encode() + b"\\n")
except UserError as error:
    print(error, file=sys.stderr)
    sys.exit(2)
# TensorFlow itself takes in jax where it is installed.
assert {"tensorflow", "jax"}.isdisjoint(sys.modules) or sys.argv[2] == "tfrecord"
"""


def prepare(folder: Path, file_format: str) -> Path:
    done = subprocess.run(
        [sys.executable, "-c", PREPARE, str(folder), file_format], check=False, capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture(scope="module")
def array_record(tmp_path_factory):
    return prepare(tmp_path_factory.mktemp("array_record"), "array_record")


def read(data_dir: Path, source: str, file_format: str = "array_record") -> list[Pair]:
    """The pairs; raises what the user would be told."""
    done = subprocess.run(
        [sys.executable, "-c", READ, source, file_format],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={"TFDS_DATA_DIR": str(data_dir), "PATH": "", "HOME": str(data_dir)},
    )
    if done.returncode == 2:
        raise UserError(done.stderr.rstrip("\n").split("\n")[-1])
    assert done.returncode == 0, done.stderr
    return [Pair(*line.split("\t")) for line in done.stdout.split("\n")[:-1]]


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
        ("wmt14_translate/de-en:train:en-fr", r"there is no language 'fr'; allowed: de, en"),
    ],
)
def test_what_is_not_there_is_named(array_record, source, complaint):
    with pytest.raises(UserError, match=rf"^tfds:{source}.*{complaint}"):
        read(array_record, f"tfds:{source}")


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
