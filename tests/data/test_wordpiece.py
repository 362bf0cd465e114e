"""Vocabularies trained and loaded, bytes, and what is said of a vocab.txt that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mhsh.data.wordpiece import (
    SPECIALS,
    ByteTokenizer,
    WordPieceTokenizer,
    check_known,
    count_unknown,
    load_wordpiece,
    train_wordpiece,
    unknown_fraction,
)
from mhsh.errors import UserError
from tests.data.conftest import printed

SPECIAL_LINES = "".join(token + "\n" for token in SPECIALS)


def test_wordpiece_takes_the_longest_known_piece(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text(SPECIAL_LINES + "un\n##aff\n##able\n##a\nhello\n,\n[\n]\nsep\nHéllo\n")
    tokenizer = load_wordpiece(path, lowercase=True)
    ids = tokenizer.encode_batch(["Héllo, unaffable xyz", "", "[SEP]"])
    assert [array.dtype for array in ids] == [np.int32] * 3
    assert [array.tolist() for array in ids] == [[9, 10, 5, 6, 7, 1], [], [11, 13, 12]]  # the special's name is plain text
    assert tokenizer.decode(ids[0].tolist()) == "hello , unaffable [UNK]"
    assert load_wordpiece(path, lowercase=False).encode_batch(["Héllo hello"])[0].tolist() == [14, 9]
    assert np.flatnonzero(tokenizer.is_special).tolist() == [0, 1, 2, 3, 4]


def test_training_learns_words_and_covers_its_text(english: list[str]) -> None:
    tokenizer = train_wordpiece(english, 400, lowercase=True)
    assert tokenizer.vocab[:5] == SPECIALS
    assert len(set(tokenizer.vocab)) == tokenizer.vocab_size == 400
    assert "in" in tokenizer.vocab
    ids = np.concatenate(tokenizer.encode_batch(english))
    assert tokenizer.unk_id not in ids
    words = " ".join(english).lower().replace(".", " . ").split()
    assert tokenizer.decode(ids.tolist()).split() == words
    assert len(ids) < 2.2 * len(words)


def test_training_is_the_same_in_every_process(english: list[str]) -> None:
    # Characters of equal frequency and pairs of equal frequency are where a hash table's order
    # would show.
    texts = [*english[:20], "zq xj vw kp gy hb cn dm", "ÀÉÎÕÜ ñçß"]
    code = (
        "import json, sys\nfrom mhsh.data.wordpiece import train_wordpiece\n"
        "print(json.dumps(train_wordpiece(json.load(sys.stdin), 300, lowercase=False).vocab))\n"
    )
    here = list(train_wordpiece(texts, 300, lowercase=False).vocab)
    for seed in ("1", "2"):
        assert json.loads(printed(code, given=json.dumps(texts), PYTHONHASHSEED=seed)) == here


def test_a_vocabulary_without_room_for_words(english: list[str]) -> None:
    with pytest.raises(
        UserError, match=r"model\.vocab_size = 20 is too small .* characters alone take \d+ tokens; set model\.vocab_size to"
    ):
        train_wordpiece(english, 20, lowercase=True)


def test_vocab_roundtrip(english: list[str], tmp_path: Path) -> None:
    trained = train_wordpiece(english, 300, lowercase=True)
    trained.save(tmp_path / "vocab.txt")
    loaded = load_wordpiece(tmp_path / "vocab.txt", lowercase=True)
    assert loaded.vocab == trained.vocab
    for a, b in zip(trained.encode_batch(english), loaded.encode_batch(english), strict=True):
        np.testing.assert_array_equal(a, b)
    loaded.save(tmp_path / "again.txt")
    assert (tmp_path / "again.txt").read_bytes() == (tmp_path / "vocab.txt").read_bytes()


def test_vocab_lines_end_at_newlines_only(tmp_path: Path) -> None:
    (tmp_path / "vocab.txt").write_bytes((SPECIAL_LINES + "a\u2028b\n\u0085\nc").replace("\n", "\r\n").encode())
    assert load_wordpiece(tmp_path / "vocab.txt", lowercase=True).vocab == (*SPECIALS, "a\u2028b", "\u0085", "c")


@given(st.text())
def test_bytes_roundtrip(text: str) -> None:
    tokenizer = ByteTokenizer()
    (ids,) = tokenizer.encode_batch([text])
    assert ids.dtype == np.int32
    assert len(ids) == len(text.encode("utf-8"))
    assert not len(ids) or (ids.min() >= 5 and ids.max() < tokenizer.vocab_size == 261)
    assert tokenizer.decode(ids.tolist()) == text


def test_bytes_show_specials_and_cut_characters() -> None:
    tokenizer = ByteTokenizer()
    assert tokenizer.decode([2, *tokenizer.encode_batch(["ü"])[0].tolist()[:1], 3]) == "[CLS]\ufffd[SEP]"
    assert tokenizer.is_special.sum() == 5
    assert (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id) == (0, 1, 2, 3, 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[PAD]\n[UNK]\n[CLS]\n[SEP]\na\n", r"vocab\.txt lacks \[MASK\]; a BERT vocabulary has"),
        ("a\nb\n", r"vocab\.txt lacks \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\];"),
        ("", r"vocab\.txt lacks \[PAD\]"),
        (SPECIAL_LINES + "a\nb\na\n", r"vocab\.txt has the token 'a' twice, in lines 6 and 8"),
        (SPECIAL_LINES + "a\n\nb\n", r"vocab\.txt line 7 is empty"),
    ],
)
def test_a_vocabulary_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "vocab.txt").write_text(content)
    with pytest.raises(UserError, match=message):
        load_wordpiece(tmp_path / "vocab.txt", lowercase=True)


def test_unknown_characters_are_those_of_the_words_without_pieces() -> None:
    """Against each word alone: a run of more than 100 letters is lost as one token."""
    tokenizer = WordPieceTokenizer([*SPECIALS, "a", "##a", "b", "é"], lowercase=False)
    texts = ["a aa " + "a" * 101, "ab a b", "", "é 日本 a", "x" * 300]
    counted = count_unknown(texts, tokenizer.encode_batch(texts), tokenizer)
    words = [word for text in texts for word in text.split()]
    lost = [word for word in words if tokenizer.unk_id in tokenizer.encode_batch([word])[0]]
    assert lost == ["a" * 101, "ab", "日本", "x" * 300]
    assert counted == {"characters": sum(map(len, words)), "unknown_characters": sum(map(len, lost))}
    assert unknown_fraction(counted) == pytest.approx(405 / 412)
    with pytest.raises(UserError, match=r"^98% of the characters of t\.txt are in words .* would be lost as \[UNK\]; do this"):
        check_known(counted, "t.txt", "do this")
    assert (
        unknown_fraction({})
        == count_unknown(["日"], ByteTokenizer().encode_batch(["日"]), ByteTokenizer())["unknown_characters"]
        == 0
    )


def test_a_vocabulary_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the vocabulary .*none\.txt does not exist; .* or empty data\.vocab_path"):
        load_wordpiece(tmp_path / "none.txt", lowercase=True)
    with pytest.raises(UserError, match="cannot read the vocabulary"):
        load_wordpiece(tmp_path, lowercase=True)
    (tmp_path / "latin.txt").write_bytes(SPECIAL_LINES.encode() + b"\xe9\n")
    with pytest.raises(UserError, match=r"latin\.txt line 6 is not UTF-8: .* at byte 0 of the line; it looks like"):
        load_wordpiece(tmp_path / "latin.txt", lowercase=True)


@pytest.mark.realdata
def test_published_vocabularies(real_data: Path, tmp_path: Path) -> None:
    uncased = load_wordpiece(real_data / "vocab" / "bert-base-uncased-vocab.txt", lowercase=True)
    assert uncased.vocab_size == 30522
    assert (uncased.pad_id, uncased.unk_id, uncased.cls_id, uncased.sep_id, uncased.mask_id) == (0, 100, 101, 102, 103)
    # The example of BERT's own README, and ids as published with the model.
    assert uncased.decode(uncased.encode_batch(["John Johanson's house"])[0].tolist()) == "john johanson ' s house"
    assert uncased.encode_batch(["Hello, world!"])[0].tolist() == [7592, 1010, 2088, 999]
    cased = load_wordpiece(real_data / "vocab" / "bert-base-cased-vocab.txt", lowercase=False)
    assert cased.vocab_size == 28996
    cased.save(tmp_path / "vocab.txt")
    assert (tmp_path / "vocab.txt").read_bytes() == (real_data / "vocab" / "bert-base-cased-vocab.txt").read_bytes()
