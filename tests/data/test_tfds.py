"""Pairs and texts of data sets that TFDS wrote."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mhsh.data.documents import documents
from mhsh.data.pairs import Pair, read_pairs
from mhsh.data.tfds import _languages, read_tfds
from mhsh.errors import UserError
from tests.conftest import ROOT
from tests.data.conftest import tfds_folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    from tests.data import tfds_builders

    folder = tmp_path_factory.mktemp("array_record")
    tfds_builders.prepare(tfds_builders.Wmt14Translate, folder, config="de-en")
    tfds_builders.prepare(tfds_builders.Wikipedia, folder, config="20230601.en")
    return folder


@pytest.fixture
def prepared(folder):
    with tfds_folder(folder):
        yield


def read(source: str) -> list[Pair]:
    return list(read_pairs(source))


def expected(count: int) -> set[Pair]:
    return {Pair(f"number {number}", f"Zahl {number} \u00fc\u2028") for number in range(count)}


def test_pairs_of_a_split_of_a_slice_and_of_the_other_direction(prepared):
    pairs = read("tfds:wmt14_translate/de-en")
    assert len(pairs) == 2500 and set(pairs) == expected(2500)
    assert all(isinstance(pair, Pair) for pair in pairs)
    validation = read("tfds:wmt14_translate/de-en:validation")
    assert len(validation) == 7 and set(validation) == expected(7)
    assert read("tfds:wmt14_translate/de-en:1.0.0:train[10:1500]:de-en") == [
        Pair(pair.target, pair.source) for pair in pairs[10:1500]
    ]


def test_articles_are_documents(prepared):
    """A paragraph is a line, blank lines are left out, and an empty text is an empty document."""
    found = list(documents("tfds:wikipedia/20230601.en"))
    assert len(found) == 40
    assert set(found) == {f"Article {number} \u00fc\u2028 begins.\nIt goes on.\nIt ends." for number in range(1, 40)} | {""}
    assert list(documents("tfds:wikipedia/20230601.en:1.0.0:train[5:9]")) == found[5:9]
    with pytest.raises(
        UserError, match=r"tfds:wmt14_translate/de-en has the features de, en, but not 'text'; name a data set that has it"
    ):
        list(documents("tfds:wmt14_translate/de-en"))


_ALONE = """
import socket
import sys
from mhsh.data.pairs import read_pairs

def connect(*arguments):
    raise AssertionError(arguments)

socket.socket.connect = connect
assert "tensorflow_datasets" not in sys.modules
assert len(list(read_pairs("tfds:wmt14_translate/de-en:validation"))) == 7
assert {"tensorflow", "jax", "grain"}.isdisjoint(sys.modules)
"""


def test_array_record_needs_neither_tensorflow_nor_the_network_and_tfds_is_imported_late(folder):
    environment = {"TFDS_DATA_DIR": str(folder), "PATH": "", "HOME": str(folder)}
    done = subprocess.run([sys.executable, "-c", _ALONE], check=False, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr


def test_tfrecord_is_refused(folder, tmp_path):
    """The files say that they are TFRecord; nobody gets as far as to read them."""
    there = folder / "wmt14_translate" / "de-en" / "1.0.0"
    copy = tmp_path / there.relative_to(folder)
    copy.mkdir(parents=True)
    for name in ("features.json", "dataset_info.json"):
        (copy / name).write_bytes((there / name).read_bytes())
    info = json.loads((copy / "dataset_info.json").read_text())
    (copy / "dataset_info.json").write_text(json.dumps(info | {"fileFormat": "tfrecord"}))
    with (
        tfds_folder(tmp_path),
        pytest.raises(UserError, match=r"is stored as tfrecord, .*; run: tfds build wmt14_translate/de-en --f"),
    ):
        read("tfds:wmt14_translate/de-en")


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("wmt19_translate/de-en", r"is not prepared in .*; run: tfds build wmt19_translate/de-en --file_format=array_record"),
        ("wmt14_translate/de-en:test", r"unknown split 'test'; allowed: train, validation"),
        (
            "wmt14_translate/de-en:train[abc]",
            r"Error parsing split 'train\[abc\]'.*; write a slice as in train\[:1000\] or train\[:10%\]",
        ),
        (
            "wmt14_translate/de-en:validation[:8]",
            r"Requested slice \[:8\] incompatible with 7 examples; write a slice as in validation",
        ),
        ("wmt14_translate/de-en:validation[:5%]", r"validation\[:5%\] has no records; name a larger part"),
        ("wmt14_translate/de-en:train:en-fr", r"has the features de, en, but not 'fr'; name"),
        ("wikipedia/20230601.en:train:en-de", r"en-de is only for sentence pairs; write tfds:DATASET\[:SPLIT\]"),
    ],
)
def test_what_is_not_there_is_named(prepared, source, complaint):
    with pytest.raises(UserError, match=rf"^tfds:{re.escape(source)}.*{complaint}"):
        list((documents if "wikipedia" in source else read_pairs)(f"tfds:{source}"))


@pytest.mark.parametrize("name", ["", "a b", "wmt14_translate/de-en:train:en", "x:train:en-de:more"])
def test_names_that_are_none(name):
    with pytest.raises(UserError, match=r"write DATASET\[:SPLIT\[:SOURCE-TARGET\]\]"):
        read_tfds(name)


def test_the_direction_is_out_of_english_where_nothing_is_said():
    assert _languages("x", None, ["de", "en"]) == ("en", "de")
    assert _languages("x", "de-en", ["de", "en"]) == ("de", "en")
    with pytest.raises(UserError, match="has de, fr; name two of them"):
        _languages("x", None, ["de", "fr"])
