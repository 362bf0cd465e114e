"""Sentence pairs from files, their cleaning, and what is said of files that do not pair."""

from __future__ import annotations

import gzip
import lzma
import unicodedata
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from mhsh.config.schema import TranslationDataConfig
from mhsh.data import synthetic
from mhsh.data.pairs import Pair, clean_text, read_pairs
from mhsh.data.synthetic import training_pairs
from mhsh.data.translation import TranslationTask
from mhsh.errors import UserError
from tests.data.preparing import translation_config

DATA = cast(TranslationDataConfig, translation_config(source="numbers", sequence_length=32, max_length_ratio=3.0).data)


def test_files_pair_in_sorted_order_plain_and_packed(tmp_path: Path) -> None:
    (tmp_path / "a.en").write_bytes("one\ntwo\u0085still two\n".encode())
    (tmp_path / "a.de").write_bytes("\ufeffeins\nzwei".encode())
    (tmp_path / "b.en.gz").write_bytes(gzip.compress(b"three\n\nfive\n"))
    (tmp_path / "b.de.gz").write_bytes(gzip.compress("drei\r\n\nfünf\n".encode()))
    (tmp_path / "c.en.xz").write_bytes(lzma.compress(b"six\n"))
    (tmp_path / "c.de.xz").write_bytes(lzma.compress(b"sechs\n"))
    pairs = list(read_pairs(f"text:{tmp_path}/*.en*,{tmp_path}/*.de*"))
    assert pairs == [
        ("one", "eins"),
        ("two\u0085still two", "zwei"),
        ("three", "drei\r"),
        ("", ""),
        ("five", "fünf"),
        ("six", "sechs"),
    ]
    assert all(isinstance(pair, Pair) for pair in pairs)


def test_files_pair_by_what_the_globs_match(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("news", "news.dev", "deep/news", "deep/a/news.x"):  # "news.en" is after "news.dev.en", "news.de" before
        for language in ("en", "de"):
            path = tmp_path / f"{name}.{language}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{name}\n")
    globs = ("news*.", "**/*.", "deep/**/news*.", "n?ws*.", "news.", "ne[w]s.d[e]v.")
    for glob in globs:
        pairs = list(read_pairs(f"text:{glob}en,{glob}de"))
        assert pairs and all(source == target for source, target in pairs), glob
        assert list(read_pairs(f"text:{tmp_path}//{glob}en,./{glob}de")) == pairs
    (tmp_path / "news.dev.de").rename(tmp_path / "nouvelles.de")  # other names pair in sorted order
    assert list(read_pairs("text:new*.en,n*.de")) == [("news.dev", "news"), ("news", "news.dev")]


@pytest.mark.parametrize(("source", "target"), [(3, 5), (5, 3), (0, 1), (1, 0)])
def test_files_of_unequal_length(tmp_path: Path, source: int, target: int) -> None:
    (tmp_path / "t.en").write_text("a\n" * source)
    (tmp_path / "t.de").write_text("b\n" * target)
    with pytest.raises(UserError, match=rf"t\.en has {source} lines, .*t\.de {target}; line n must translate line n"):
        list(read_pairs(f"text:{tmp_path}/t.en,{tmp_path}/t.de"))


def test_files_that_cannot_pair_or_be_read(tmp_path: Path) -> None:
    for name in ("a.en", "b.en", "a.de"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(UserError, match=r"matches 2 source files \(.*a\.en \.\.\.\) and 1 target files"):
        list(read_pairs(f"text:{tmp_path}/*.en,{tmp_path}/*.de"))
    with pytest.raises(UserError, match=r"'.*\*\.fr' in 'text:.*' matches no file; correct the glob"):
        list(read_pairs(f"text:{tmp_path}/*.en,{tmp_path}/*.fr"))
    (tmp_path / "t.en.gz").write_bytes(gzip.compress(b"x\n" * 5000)[:-20])
    with pytest.raises(UserError, match=r"t\.en\.gz is damaged and cannot be unpacked"):
        list(read_pairs(f"text:{tmp_path}/t.en.gz,{tmp_path}/a.de"))


@pytest.mark.parametrize("source", ["stdlib", "text:a", "text:a,b,c", "tfds:", "numbers:0", "numbers:many", "numbers:-1", ""])
def test_what_is_no_source(source: str) -> None:
    with pytest.raises(UserError, match=r"allowed: numbers, numbers:COUNT, text:|is not a number of pairs"):
        read_pairs(source)
    with pytest.raises(UserError, match="'arrayrecord:d' holds rows, not sentence pairs"):
        read_pairs("arrayrecord:d")


def test_numbers_source(monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(read_pairs("numbers:50")) == list(training_pairs(50))
    assert synthetic.PAIRS_PER_EPOCH == 100_000
    monkeypatch.setattr(synthetic, "PAIRS_PER_EPOCH", 70)
    assert list(read_pairs("numbers")) == list(training_pairs(70))


def kept(data: TranslationDataConfig, pairs: list[Pair], own: list[Pair] | None = None) -> tuple[list[Any], dict[str, int]]:
    """The split and the text of every pair that is kept, and the counts."""
    task = TranslationTask(translation_config().model, data)
    counts = dict.fromkeys(task.count_names, 0)
    found = []
    try:
        found.extend(task.split([*([] if own is None else [own]), pairs], counts))
    except UserError as error:  # at the end, where a side has too few
        assert "leaves 0 pairs for validation" in str(error)
    return found, counts


def test_cleaning_drops_and_counts() -> None:
    dirty = [
        Pair("  a\t b\u00a0c ", "x\x00y"),
        Pair("a b c", "xy"),  # the one before, once it is clean
        Pair("a b c", "another"),
        Pair(" \u2003\x07", "x"),
        Pair("x", ""),
        Pair("u\u0308ber", "o\x08\u0308"),
    ]
    found, counts = kept(replace(DATA, validation_fraction=0.0), dirty)
    assert [pair for _, pair in found] == [("a b c", "xy"), ("a b c", "another"), ("\u00fcber", "\u00f6")]
    assert counts == {"read": 6, "empty": 2, "duplicates": 1, "in_both_splits": 0}


@given(st.text(max_size=60))
def test_clean_text_is_composed_has_single_spaces_and_stays(text: str) -> None:
    cleaned = clean_text(text)
    assert clean_text(cleaned) == cleaned
    assert unicodedata.is_normalized("NFC", cleaned)
    assert cleaned == cleaned.strip()
    assert not any(unicodedata.category(character) == "Cc" or (character.isspace() and character != " ") for character in cleaned)
    assert "  " not in cleaned
    # Nothing but white space and control characters goes.
    visible = [c for c in unicodedata.normalize("NFC", clean_text(text)) if c != " "]
    assert visible == [
        c
        for c in unicodedata.normalize("NFC", "".join(c for c in text if c.isspace() or unicodedata.category(c) != "Cc"))
        if not c.isspace()
    ]


def test_pairs_with_the_same_words_on_other_sides_are_not_the_same() -> None:
    pairs = [Pair("a b", "c"), Pair("a", "b c"), Pair("a", "b"), Pair("b", "a")]
    assert [pair for _, pair in kept(replace(DATA, validation_fraction=0.0), pairs)[0]] == pairs


def test_pairs_that_validation_has_of_its_own_are_not_trained_on() -> None:
    pairs = [Pair(text, text.upper()) for text in "abcab"]
    own = [Pair("b", "B"), Pair("x", "X"), Pair("x ", "X"), Pair("", "Y"), Pair("a", "other")]
    found, counts = kept(DATA, pairs, own)
    assert found[:3] == [("validation", ("b", "B")), ("validation", ("x", "X")), ("validation", ("a", "other"))]
    assert found[3:] == [("train", ("a", "A")), ("train", ("c", "C"))]
    assert counts == {"read": 5, "empty": 0, "duplicates": 2, "in_both_splits": 1}
